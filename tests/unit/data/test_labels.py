"""Rankings, annotations, pairs, reasons, and the checks over them."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paco_core.config.params import AnnotationsParams, EditingParams, PairsParams, ReasonsParams
from paco_core.data import checks
from paco_core.data.annotation.agreement import measure_agreement
from paco_core.data.annotation.rankings import build_instances, expected_instances
from paco_core.data.annotation.sources import collect_votes
from paco_core.data.annotation.votes import Annotation, RankingTask, adjudicate, to_table
from paco_core.data.pairs import pairs
from paco_core.data.pairs.editing import SHARD, editing_pairs
from paco_core.data.pairs.reasons import explain_pairs
from paco_core.data.records.panels import PanelStore
from paco_core.data.records.records import PromptRecord, parse_ref
from paco_core.io.files import DataError, write_json
from paco_core.io.shards import ShardReader
from paco_core.stages import declaration, names
from tests.support.dataset_world import draw_grids, quick, records


def grid_table(prompts: int, seeds: int, layout: str) -> pd.DataFrame:
    rows = [(f"g{p}-{s}", f"p{p}", s, layout) for p, s in product(range(prompts), range(seeds))]
    return pd.DataFrame(rows, columns=["id", "prompt_id", "seed", "layout"])


@quick
@given(st.integers(1, 3), st.integers(2, 5), st.sampled_from(["1x2", "2x2", "1x5", "2x3"]))
def test_instances_are_complete_for_any_layout(prompts: int, seeds: int, layout: str) -> None:
    grids = grid_table(prompts, seeds, layout)
    table = build_instances(grids)
    assert len(table) == prompts * expected_instances(layout, seeds)
    assert table["instance_id"].is_unique
    owner = dict(zip(grids["id"], grids["prompt_id"], strict=True))
    panels = expected_instances(layout, 2) // 2
    for row in table.to_dict("records"):
        candidate_grids = {parse_ref(ref)[0] for ref in row["candidates"]}
        assert len(candidate_grids) == 1 and candidate_grids != {parse_ref(row["reference"])[0]}
        assert [parse_ref(ref)[1] for ref in row["candidates"]] == list(range(panels))
        assert (
            {owner[grid] for grid in candidate_grids} == {row["prompt_id"]} == {owner[parse_ref(row["reference"])[0]]}
        )
    shuffled = grids.sample(frac=1, random_state=3)
    pd.testing.assert_frame_equal(build_instances(shuffled), table)


def test_the_paper_s_number_and_bad_grids() -> None:
    assert len(build_instances(grid_table(1, 4, "2x2"))) == 48
    with pytest.raises(DataError, match="p0: it has only one grid"):
        build_instances(grid_table(1, 1, "2x2"))
    with pytest.raises(DataError, match="p0"):
        build_instances(pd.concat([grid_table(1, 2, "2x2"), grid_table(1, 1, "2x2").assign(id="x")]))  # seed 0 twice
    with pytest.raises(DataError, match="p0"):
        build_instances(pd.concat([grid_table(1, 2, "2x2"), grid_table(1, 1, "1x4").assign(id="x", seed=2)]))


def test_ids_of_instances_stay_the_same_in_each_version() -> None:
    """Answers of people refer to them."""
    ids = ["bf80117d23ea6756", "585c757f3f7ce66c", "3c5d33e8138201b4", "ccca7e2c109ac97f"]
    assert build_instances(grid_table(1, 2, "1x2"))["instance_id"].tolist() == ids


def ranked(prompt: str, reference: str, other: str, scores: list[float]) -> pairs.Instance:
    order = sorted(range(len(scores)), key=lambda n: -scores[n])
    refs = [f"{other}#{n}" for n in range(len(scores))]
    note = Annotation(f"{reference}|{other}", "x", order, scores, len(set(scores)) < len(scores))
    return pairs.Instance(note.instance_id, prompt, reference, refs, note)


def test_labels_follow_the_rule_and_doubtful_ones_are_counted() -> None:
    instances = [ranked("p", "a#0", "b", [0.5, 1.0, 0.25, 0.75])]
    labels = {rule: {(x.second, x.label) for x in pairs.build_pairs(instances, rule)[0]} for rule in
              ("top1_bottom1", "top2_bottom2", "adjacent")}  # fmt: skip
    assert labels["top1_bottom1"] == {("b#1", "Yes"), ("b#2", "No")}
    assert labels["top2_bottom2"] == {("b#1", "Yes"), ("b#3", "Yes"), ("b#0", "No"), ("b#2", "No")}
    assert labels["adjacent"] == {("b#1", "Yes"), ("b#3", "No")}
    labelled, dropped = pairs.build_pairs([ranked("p", "a#0", "b", [0.5, 0.75])], "top1_bottom1", confident=True)
    assert [x.label for x in labelled] == ["No"] and dropped == {"top_differs": 1}
    labelled, dropped = pairs.build_pairs([ranked("p", "a#0", "b", [1.0, 1.0])], "top1_bottom1", confident=True)
    assert [x.label for x in labelled] == ["Yes"] and dropped == {"bottom_agrees": 1}
    assert (
        len(pairs.build_pairs([ranked("p", "a#0", "b", [math.nan, math.nan])], "top1_bottom1", confident=True)[0]) == 2
    )
    with pytest.raises(DataError, match="needs 4 candidates"):
        pairs.build_pairs([ranked("p", "a#0", "b", [0.5, 1.0])], "top2_bottom2")


def test_duplicates_and_contradictions_are_counted_and_dropped() -> None:
    instances = [ranked("p", "a#0", "b", [1.0, 0.0]), ranked("p", "b#0", "a", [1.0, 0.0])]
    labelled, dropped = pairs.build_pairs(instances, "top1_bottom1")
    assert {frozenset((x.first, x.second)) for x in labelled} == {
        frozenset(("a#0", "b#0")), frozenset(("a#0", "b#1")), frozenset(("b#0", "a#1"))
    }  # fmt: skip
    assert dropped["duplicate"] == 1
    _, dropped = pairs.build_pairs([instances[0], ranked("p", "b#0", "a", [0.0, 1.0])], "top1_bottom1")
    assert dropped["contradiction"] == 2


def settings(**changes: object) -> PairsParams:
    values = {"rule": "top1_bottom1", "confident": True, "benchmark_untied": True, "split": "prompt",
             "validation_share": 0.2, "benchmark_share": 0.25, "balance": True, "seed": 0}  # fmt: skip
    return PairsParams(**{**values, **changes})  # type: ignore[arg-type]


@quick
@given(st.integers(8, 20), st.integers(0, 3), st.sampled_from(["prompt", "instance"]))
def test_splits_share_nothing_by_prompt(prompts: int, seed: int, by: str) -> None:
    instances = [
        ranked(f"p{p}", f"{p}-{s}#{n}", f"{p}-{1 - s}", [1.0, 0.5, 1.0 if (p + n) % 3 else 0.25, 0.75])
        for p, s, n in product(range(prompts), (0, 1), range(4))
    ]
    split = pairs.split_pairs(instances, settings(seed=seed, split=by))
    train, validation = ({x.prompt_id for x in part} for part in (split.train, split.validation))
    held_out = {i.prompt_id for i in split.benchmark}
    assert split.train and split.validation and split.benchmark
    for part in (split.train, split.validation):
        yes = sum(x.label == "Yes" for x in part)
        assert abs(yes - (len(part) - yes)) <= 0.03 * min(yes, len(part) - yes)
    if by == "prompt":
        assert not (train & validation or train & held_out or validation & held_out) and not split.leaked_pairs
        assert len(held_out) == round(0.25 * prompts)
    else:
        panels = {ref for i in split.benchmark for ref in (i.reference, *i.candidates)}
        sides = [(p.first in panels, p.second in panels) for part in (split.train, split.validation) for p in part]
        assert split.leaked_pairs == sum(first or second for first, second in sides) > 0
        assert split.leaked_pairs > sum(first and second for first, second in sides), "one panel is enough"


def test_rankings_without_difference_are_no_benchmark() -> None:
    instances = [ranked(f"p{p}", f"{p}-0#0", f"{p}-1", [1.0, 1.0] if p % 2 else [1.0, 0.5]) for p in range(16)]
    split = pairs.split_pairs(instances, settings(balance=False))
    assert len(split.benchmark) + split.dropped["benchmark_all_tied"] == 4
    assert all(len(set(i.annotation.scores)) == 2 for i in split.benchmark)
    assert len(pairs.split_pairs(instances, settings(balance=False, benchmark_untied=False)).benchmark) == 4


@pytest.fixture(scope="module")
def world(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[PromptRecord]]:
    """Drawn grids taken through rankings, annotations, pairs and answers."""
    data = tmp_path_factory.mktemp("world") / "data"
    prompts = records(8)
    draw_grids(data, prompts)
    grids, zoo = PanelStore.below(data / "grids"), "data/zoo/recogniser"
    tables = {"rankings/instances": build_instances(ShardReader.below(data / "grids").index)}
    source = AnnotationsParams(source="recogniser", model=zoo)
    votes = collect_votes(RankingTask(tables["rankings/instances"], grids, source, repository)).rankings
    annotations = adjudicate(votes)
    tables["annotations/rankings"] = to_table(annotations.values())
    write_json(data / "annotations" / "agreement.json", measure_agreement(votes).as_json())
    joined, unranked = pairs.join(tables["rankings/instances"], annotations)
    assert unranked == 0
    edits = editing_pairs(EditingParams(source="storybook", count=12, broken_share=0.5), repository)
    edits.pictures.write(data / "pairs" / SHARD)
    split, by_id = pairs.split_pairs(joined, settings(), edits.pairs), {record.idx: record for record in prompts}
    write_json(data / "pairs" / "summary.json", {"leakage": "refuse"})
    grids = PanelStore.below(data / "grids", data / "pairs")
    tables["pairs/benchmark"] = pairs.benchmark_table(split.benchmark, by_id)
    for part, rows in (("train", split.train), ("validation", split.validation)):
        tables[f"pairs/{part}"] = pairs.pair_table(rows, by_id)
        explained = explain_pairs(
            tables[f"pairs/{part}"], grids, ReasonsParams(engine="storybook", model=zoo), repository
        )
        tables[f"cot_labels/{part}"], tables[f"cot_labels/{part}_failed"] = explained.table, explained.failed
        assert sum(explained.causes.values()) == len(explained.failed)
    for name, table in tables.items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        table.to_parquet(data / f"{name}.parquet", index=False)
    return data, prompts


def test_every_check_passes_on_good_data(world: tuple[Path, list[PromptRecord]]) -> None:
    stages = [name for name in names() if (world[0] / name).is_dir()]
    reports = [
        report for name in stages for check in declaration(name).checks for report in check.reports(world[0].parent)
    ]
    assert len(reports) == 9 and [report.name for report in reports if not report.passed] == []


def test_checks_see_broken_data(world: tuple[Path, list[PromptRecord]], tmp_path: Path) -> None:
    import shutil

    data = tmp_path / "data"

    def fresh() -> Path:
        shutil.rmtree(data, ignore_errors=True)
        shutil.copytree(world[0], data)
        return data

    def edit(name: str, change: object) -> Path:
        file = fresh() / f"{name}.parquet"
        change(pd.read_parquet(file)).to_parquet(file, index=False)  # type: ignore[operator]
        return data

    train = pd.read_parquet(world[0] / "pairs" / "train.parquet")
    assert not checks.rankings_are_complete(edit("rankings/instances", lambda t: t.iloc[1:])).passed
    assert not checks.annotations_order_all_candidates(edit("annotations/rankings", lambda t: t.iloc[1:])).passed
    assert not checks.labels_are_balanced(edit("pairs/train", lambda t: t[t["label"] == "Yes"])).passed
    leak = edit("pairs/benchmark", lambda t: t.assign(reference=train["first"].iloc[0]))
    assert not checks.benchmark_is_held_out(leak).passed
    assert not checks.answers_agree_with_labels(edit("cot_labels/train", lambda t: t.assign(answer="Maybe."))).passed
    assert not checks.answers_agree_with_labels(edit("cot_labels/train", lambda t: t.iloc[1:])).passed
    half = edit("cot_labels/train", lambda t: t.iloc[::2])
    pd.read_parquet(world[0] / "cot_labels/train.parquet").iloc[1::2].to_parquet(
        data / "cot_labels/train_failed.parquet"
    )
    assert ", 0 lost" in checks.answers_agree_with_labels(half).description
    assert not checks.answers_agree_with_labels(half).passed, "half of the pairs have no answer"
    shutil.rmtree(fresh() / "grids" / "shard-1")
    assert checks.grids_are_complete(data).metadata["missing"] == 8
    assert checks.grids_are_complete(data, 0, [0, 1]).passed, "a shard alone, while the others are not painted"
    assert not checks.grids_are_complete(data, 1, [0, 1]).passed
    tar = fresh() / "grids" / "shard-1" / "images.tar"
    tar.write_bytes(tar.read_bytes()[:2000])
    assert "cut off" in checks.grids_are_complete(data).description
    lines = (fresh() / "prompts" / "prompts.jsonl").read_text()
    (data / "prompts" / "prompts.jsonl").write_text(lines[:-30])
    assert "cut off" in checks.prompts_are_valid(data).description
    shutil.rmtree(fresh() / "pairs")
    assert "dvc repro pairs" in checks.benchmark_is_held_out(data).description
