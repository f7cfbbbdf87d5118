"""The stage that makes pairs: editing pairs, leakage, tracing an id back; and what it does with bad input."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from PIL import Image

from paco_core.config.params import EditingParams
from paco_core.data import checks
from paco_core.data.pairs.characters import read_held_out_cases
from paco_core.data.pairs.editing import editing_pairs
from paco_core.data.pairs.leakage import HeldOut, measure_leakage
from paco_core.data.records.panels import PanelStore
from paco_core.data.records.prompt_content import text_contents
from paco_core.data.records.records import PromptRecord
from paco_core.io.files import DataError
from paco_core.reward_model.examples import read_examples
from paco_core.stages import pairs as pairs_stage
from paco_core.stages import run_stage
from paco_core.storybook.editing import Edit, random_edit
from paco_core.storybook.world import Panel
from tests.support.dataset_world import draw_grids, rank_grids, records
from tests.support.pictures import bomb


@pytest.fixture
def ranked(project: Path) -> tuple[Path, list[PromptRecord]]:
    """A project whose grids are ranked."""
    prompts = records(10)
    draw_grids(project / "data", prompts)
    rank_grids(project / "data")
    return project, prompts


def run_pairs(project: Path, **changes: Any) -> dict[str, Any]:
    """The stage with changed parameters; its figures."""
    tree = yaml.safe_load((project / "params.yaml").read_text())
    editing = tree["pairs"]["editing"] | changes.pop("editing", {})
    tree["pairs"] |= {**changes, "editing": editing}
    (project / "params.yaml").write_text(yaml.safe_dump(tree))
    run_stage("pairs", None, project)
    figures: dict[str, Any] = json.loads((project / "data/metrics/pairs.json").read_text())
    return figures


@pytest.mark.slow
def test_drawn_edits_are_pairs_with_their_own_question(ranked: tuple[Path, list[PromptRecord]]) -> None:
    project, _ = ranked
    figures = run_pairs(project, editing={"count": 20, "broken_share": 0.5})
    train, validation = (pd.read_parquet(project / f"data/pairs/{part}.parquet") for part in ("train", "validation"))
    edits = pd.concat([t[t["instruction"].notna()] for t in (train, validation)])
    assert figures["train_editing"] >= 17 and len(edits) == 20 and set(edits["label"]) == {"Yes", "No"}
    counts = Counter(train["label"])
    assert abs(counts["Yes"] - counts["No"]) <= 0.03 * min(counts.values())
    shared = set(train["prompt_id"]) & set(validation["prompt_id"])
    assert not shared and all(prompt.startswith("edit-") for prompt in edits["prompt_id"])
    (project / "labels").mkdir()
    answers = train["answer"].where(train["answer"].notna(), train["label"] + ". Because.")
    train.assign(answer=answers).to_parquet(project / "labels/train.parquet")
    panels = PanelStore.below(project / "data/grids", project / "data/pairs")
    examples = {e.id: e for e in read_examples(project / "labels/train.parquet", panels.panel, "theme")}
    for row in train.to_dict("records"):
        edited = isinstance(row["instruction"], str)
        wording = f"Instruction: '{row['instruction']}'" if edited else f'theme: "{row["theme"]}"'
        assert wording in examples[row["pair_id"]].instruction
    reports = [report for check in pairs_stage.STAGE.checks for report in check.reports(project)]
    assert reports and [report.name for report in reports if not report.passed] == []


@pytest.mark.slow
def test_character_pairs_are_split_by_character(ranked: tuple[Path, list[PromptRecord]]) -> None:
    project, _ = ranked
    shares = {"other_character": 0.2, "copy": 0.2, "swapped": 0.1, "absent": 0.1}
    characters = {"count": 60, "size": 24, "shares": shares, "references": [1, 2], "seed": 0, "stories": None}
    figures = run_pairs(project, editing={"count": 0}, characters=characters)
    tables = [pd.read_parquet(project / f"data/pairs/{part}.parquet") for part in ("train", "validation", "characters")]
    train, validation, held_out = (table[table["character"].notna()] for table in tables)
    units = [set(table["prompt_id"]) for table in (train, validation, held_out)]
    assert all(units) and not units[0] & units[1] and not (units[0] | units[1]) & units[2]
    assert set(held_out["kind"]) <= {"positive", *shares} and figures["benchmark_characters"] == len(held_out)
    counts = {key: value for key, value in figures.items() if key.startswith("train_characters.")}
    assert sum(counts.values()) == len(train) and set(counts) == {
        f"train_characters.{k}" for k in ("positive", *shares)
    }
    panels = PanelStore.below(project / "data/grids", project / "data/pairs")
    refs = {*train["first"], *train["second"], *held_out["panel"], *held_out["references"].explode()}
    assert {panels.panel(ref).size for ref in refs} == {(24, 24)}
    assert len(read_held_out_cases(project / "data/pairs")) == len(held_out)
    reports = [report for check in pairs_stage.STAGE.checks for report in check.reports(project)]
    assert reports and [report.name for report in reports if not report.passed] == []


@pytest.mark.slow
def test_some_panels_stand_beside_themselves_and_are_consistent(ranked: tuple[Path, list[PromptRecord]]) -> None:
    project, _ = ranked
    run_pairs(project, editing={"count": 0}, identical_share=0.0, balance=False)
    before = pd.concat(pd.read_parquet(project / f"data/pairs/{part}.parquet") for part in ("train", "validation"))
    run_pairs(project, identical_share=0.1)
    tables = [pd.read_parquet(project / f"data/pairs/{part}.parquet") for part in ("train", "validation")]
    after = pd.concat(tables)
    twice = after[after["first"] == after["second"]]
    assert len(twice) == round(0.1 * len(before)) == len(after) - len(before) and set(twice["label"]) == {"Yes"}
    assert len(set(twice["pair_id"])) == len(twice) and not set(tables[0]["prompt_id"]) & set(tables[1]["prompt_id"])
    assert set(before["pair_id"]) < set(after["pair_id"])


def test_an_edit_changes_what_it_says_and_a_broken_one_more() -> None:
    import random

    for seed in range(60):
        edit = random_edit(random.Random(seed), broken=seed % 2 == 1)
        changed = [t for t in Panel.__dataclass_fields__ if getattr(edit.before, t) != getattr(edit.after, t)]
        assert edit.trait in changed and len(changed) == (2 if seed % 2 else 1)
        assert edit.answer().startswith("No." if seed % 2 else "Yes.") and len(edit.unrequested_changes) == seed % 2
    red = Panel("cat", "red", "hat", "small", "snow", "flat")
    assert Edit(red, red.with_trait("accessory", "nothing"), "accessory").instruction == "Take the hat away."
    assert "to blue" in Edit(red, red.with_trait("colour", "blue"), "colour").instruction
    before, after = Edit(red, red.with_trait("scene", "city"), "scene").draw(32, 1)
    assert before.size == after.size == (32, 32) and before.tobytes() != after.tobytes()


def triples(folder: Path, rows: list[dict[str, Any] | str]) -> Path:
    Image.new("RGB", (20, 20), "red").save(folder / "a.png")
    Image.new("RGB", (20, 20), "blue").save(folder / "b.png")
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / "edits.jsonl").write_text("\n".join(lines))
    return folder / "edits.jsonl"


GOOD = {"original": "a.png", "edited": "b.png", "instruction": "Make it blue."}


def imported(file: Path, count: int | None = None) -> Any:
    return editing_pairs(EditingParams(source="import", count=count, file=file.name), file.parent)


def test_imported_edits_name_the_line_of_each_that_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "cut.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "huge.png").write_bytes(bomb())
    names = ("none.png", "empty.png", "cut.png", "huge.png", "/etc/hostname")
    records = [{**GOOD, "label": "Maybe"}, {"original": "a.png"}, {**GOOD, "answer": "Yes. It is.<|im_end|>"}]
    bad = [*({**GOOD, "edited": name} for name in names), GOOD, *records, json.dumps(GOOD)[:20]]
    editing = imported(triples(tmp_path, [GOOD, *bad]))
    assert [pair.instruction for pair in editing.pairs] == ["Make it blue."] and editing.pairs[0].label == "Yes"
    assert [place.rpartition(":")[2] for place, _ in editing.rejected] == [str(n) for n in range(2, 2 + len(bad))]
    kinds = [*["picture"] * len(names), "duplicate", *["record"] * len(records), "line"]
    assert [cause.partition(":")[0] for _, cause in editing.rejected] == kinds
    assert len(imported(triples(tmp_path, [GOOD, {**GOOD, "instruction": "More."}]), 1).pairs) == 1
    with pytest.raises(DataError, match="none of its 1 editing triples"):
        imported(triples(tmp_path, [{**GOOD, "original": "x.png"}]))


@pytest.mark.slow
def test_a_split_by_instance_is_refused_until_its_leakage_is_accepted(
    ranked: tuple[Path, list[PromptRecord]], capsys: pytest.CaptureFixture[str]
) -> None:
    project, _ = ranked
    with pytest.raises(DataError, match=r"7 prompts and 14 pictures of the benchmark occur in training"):
        run_pairs(project, split="instance")
    assert not (project / "data/pairs").exists() and not list((project / "data").glob(".*.part"))
    figures = run_pairs(project, leakage="report")
    assert (figures["leaked_prompts"], figures["leaked_pictures"]) == (7, 14) and figures["leaked_pairs"] > 0
    assert "pairs.leakage is 'report'" in capsys.readouterr().err
    report = checks.benchmark_is_held_out(project / "data")
    assert not report.passed and report.severity == "WARN" and report.metadata["prompts"] == 7
    summary = json.loads((project / "data/pairs/summary.json").read_text())
    assert summary["split"] == "instance" and summary["counts"]["leaked_pairs"] == figures["leaked_pairs"]


def test_one_text_under_two_ids_is_one_prompt_and_equal_bytes_are_one_picture() -> None:
    benchmark = pd.DataFrame({"prompt_id": ["p1"], "reference": ["g1#0"], "candidates": [["g2#0", "g2#1"]]}).assign(
        theme=""
    )
    part = pd.DataFrame({"prompt_id": ["p2", "p3"], "first": ["g3#0", "g4#0"], "second": ["g3#1", "g5#0"]})
    part["theme"] = ""
    texts = {"p1": "A  red Cat.", "p2": "a red cat. ", "p3": "a frog"}
    md5s = {"g1": "x", "g2": "y", "g3": "z", "g4": "y", "g5": "w"}
    leaked = measure_leakage(benchmark, {"train": part}, texts, md5s)
    assert (leaked.prompts, leaked.pictures, leaked.train_and_validation) == (["p2"], ["g4"], [])
    clean = measure_leakage(benchmark, {"train": part.iloc[:0]}, texts, md5s)
    assert not clean and str(clean).startswith("0 prompts and 0 pictures")
    held_out = HeldOut(text_contents("A FROG"), frozenset({"pixels of g5#0"}))
    with_held_out = measure_leakage(benchmark.iloc[:0], {"train": part}, texts, md5s, held_out, "pixels of {}".format)
    assert (with_held_out.prompts, with_held_out.pictures) == (["p3"], ["g5"])
    assert measure_leakage(benchmark.iloc[:0], {"a": part, "b": part}, texts, md5s).train_and_validation == ["p2", "p3"]
