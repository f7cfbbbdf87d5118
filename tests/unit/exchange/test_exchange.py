"""Public formats: what is exported loads with `datasets`, comes back the same, and bad rows are named and counted."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
import yaml
from PIL import Image

from paco_core.benchmarks.rankings import read_rankings
from paco_core.cli import exchange as command
from paco_core.data.records.panels import PanelStore
from paco_core.exchange import rank_bench
from paco_core.exchange.sharegpt import PairQuestion
from paco_core.io.files import DataError, write_json
from paco_core.reward_model.examples import read_examples
from paco_core.stages import run_stage
from tests.support.dataset_world import draw_grids, rank_grids, records


@pytest.fixture(scope="module")
def source_project(tmp_path_factory: pytest.TempPathFactory, repository: Path, mlflow_template: Path) -> Path:
    """A project with pairs (edits among them) and made-up answers."""
    root = tmp_path_factory.mktemp("made")
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(repository / name, root / name)
    shutil.copy(mlflow_template, root / "mlflow.db")
    shutil.copytree(
        repository / "data/zoo/flux", root / "data/zoo/flux", ignore=shutil.ignore_patterns("*.safetensors")
    )
    draw_grids(root / "data", records(8))
    rank_grids(root / "data")
    set_pairs(root, editing={"count": 6, "broken_share": 0.5})
    run_stage("pairs", None, root)
    for split in ("train", "validation"):
        table = pd.read_parquet(root / f"data/pairs/{split}.parquet")
        plain = table["label"] + ". The colour shows it."
        (root / "data/cot_labels").mkdir(exist_ok=True)
        table = table.assign(answer=table["answer"].where(table["answer"].notna(), plain), engine="made up")
        table.to_parquet(root / f"data/cot_labels/{split}.parquet")
    annotators = [{"name": "ann"}, {"name": "bob"}]
    agreement = {"source": "people", "annotators": annotators, "shared_instances": 9, "kendall_w": 0.8125}
    write_json(root / "data/annotations/agreement.json", agreement)
    return root


def set_pairs(root: Path, **changes: Any) -> None:
    tree = yaml.safe_load((root / "params.yaml").read_text())
    tree["pairs"] |= {**changes, "editing": tree["pairs"]["editing"] | changes.get("editing", {})}
    (root / "params.yaml").write_text(yaml.safe_dump(tree))


def labels(root: Path, split: str) -> pd.DataFrame:
    return pd.read_parquet(root / f"data/cot_labels/{split}.parquet")


def store(root: Path) -> PanelStore:
    return PanelStore.below(root / "data/grids", root / "data/pairs")


def run_pairs(source_project: Path, project: Path, **changes: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The stage in a copy of the project; training and validation pairs."""
    shutil.copytree(source_project, project)
    shutil.rmtree(project / "data/pairs")
    set_pairs(project, editing={"count": 0}, balance=False, **changes)
    run_stage("pairs", None, project)
    train, validation = (pd.read_parquet(project / f"data/pairs/{part}.parquet") for part in ("train", "validation"))
    return train, validation


@pytest.mark.slow
@pytest.mark.usefixtures("sender_in_a_thread")
def test_an_exported_paco_dataset_loads_comes_back_and_can_be_added_to_the_pairs(
    source_project: Path, tmp_path: Path
) -> None:
    command.export(source_project, "paco_dataset", tmp_path / "out", "other")
    info = json.loads((tmp_path / "out/dataset_info.json").read_text())
    assert info["paco_train"]["formatting"] == "sharegpt" and info["paco_train"]["columns"]["images"] == "images"
    splits = {split: str(tmp_path / f"out/{info[f'paco_{split}']['file_name']}") for split in ("train", "validation")}
    loaded = datasets.load_dataset("json", data_files=splits, cache_dir=str(tmp_path / "cache"))
    before, panels = labels(source_project, "train"), store(source_project)
    assert len(loaded["train"]) == len(before) and len(loaded["validation"]) == len(
        labels(source_project, "validation")
    )
    for row in loaded["train"]:
        pair = before.set_index("pair_id").loc[row["id"]]
        edit = (pair["instruction"], pair["question"]) if isinstance(pair["instruction"], str) else ()
        question = PairQuestion(pair["theme"], *edit).text("theme")
        assert row["messages"][0] == {"role": "user", "content": "<image><image>" + question}
        assert row["messages"][1] == {"role": "assistant", "content": pair["answer"]}
        pictures = [Image.open(tmp_path / "out" / name).convert("RGB").tobytes() for name in row["images"]]
        assert pictures == [panels.panel(pair[side]).tobytes() for side in ("first", "second")]

    report = command.import_dataset("paco_dataset", tmp_path / "out", tmp_path / "back")
    after = pd.read_parquet(tmp_path / "back/train.parquet")
    assert f"train {len(before)}" in report and "rejected" not in report
    assert after["instruction"].notna().sum() == before["instruction"].notna().sum() > 0
    examples, originals = (
        sorted((e.instruction, e.answer, *(image.tobytes() for image in e.images)) for e in read_examples(*of, "theme"))
        for of in (
            (tmp_path / "back/train.parquet", PanelStore.below(tmp_path / "back").panel),
            (source_project / "data/cot_labels/train.parquet", panels.panel),
        )
    )
    assert examples == originals

    project = tmp_path / "project"
    parts = run_pairs(source_project, project, imported=str(tmp_path / "back"))
    answered = pd.concat(parts).dropna(subset="answer")
    assert set(answered["answer"]) <= set(before["answer"]) | set(labels(source_project, "validation")["answer"])
    assert len(answered) > 20 and not set(parts[0]["prompt_id"]) & set(parts[1]["prompt_id"])
    assert store(project).panel(answered["first"].iloc[0]).size == (32, 32)
    set_pairs(project, seed=5)  # now panels of held-out grids come in from outside, one by one and under other ids
    with pytest.raises(DataError, match=r"[1-9]\d* prompts and [1-9]\d* pictures .* theme-"):  # also their themes
        run_stage("pairs", None, project)

    # Entries under the released names: what is published to test on validates, and all the rest trains.
    names = {"paco_train": "consistency_reward_cot_train", "paco_validation": "consistency_reward_cot_test"}
    write_json(tmp_path / "out/dataset_info.json", {names[name]: entry for name, entry in info.items()})
    command.import_dataset("paco_dataset", tmp_path / "out", tmp_path / "released")
    published = [set(pd.read_parquet(tmp_path / f"released/{name}.parquet")["pair_id"]) for name in names.values()]
    parts = run_pairs(source_project, tmp_path / "split", imported=str(tmp_path / "released"), leakage="report")
    assert [set(part["pair_id"]) & set.union(*published) for part in parts] == published


def test_rank_bench_loads_comes_back_and_serves_as_benchmark(source_project: Path, tmp_path: Path) -> None:
    command.export(source_project, "rank_bench", tmp_path / "out", "other")
    loaded = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))["test"]
    prompts = datasets.load_dataset(str(tmp_path / "out"), "prompts", cache_dir=str(tmp_path / "cache"))["test"]
    assert {row["folder"] for row in loaded} <= {row["idx"] for row in prompts}
    assert len(loaded) == len(pd.read_parquet(source_project / "data/pairs/benchmark.parquet"))
    row = loaded[0]
    assert len(row["comp_images"]) == 4 and sorted(row["rank_images"]) == sorted(row["comp_images"])
    assert (tmp_path / "out/images" / row["folder"] / row["ref_image"]).is_file()
    seeds = {name.removesuffix(".png").partition("_")[2] for name in row["comp_images"]}
    assert len(seeds) == 1 and [name[0] for name in row["comp_images"]] == ["0", "1", "2", "3"]
    command.import_dataset("rank_bench", tmp_path / "out", tmp_path / "back")
    back, panels = read_rankings(tmp_path / "back/benchmark.parquet"), PanelStore.below(tmp_path / "back")
    original = read_rankings(source_project / "data/pairs/benchmark.parquet")

    def facts(instances: Any, of: PanelStore) -> list[Any]:
        pictures = ((i, [of.panel(ref).tobytes() for ref in (i.reference, *i.candidates)]) for i in instances)
        return sorted((i.theme, i.ranking, digests) for i, digests in pictures)

    assert facts(back, panels) == facts(original, store(source_project))


@pytest.mark.slow
@pytest.mark.usefixtures("sender_in_a_thread")
def test_a_foreign_benchmark_is_kept_out_of_training(source_project: Path, tmp_path: Path) -> None:
    """Its own benchmark, under other seeds of the split, lies in the training set: the stage refuses."""
    command.export(source_project, "rank_bench", tmp_path / "bench", "other")
    project = tmp_path / "project"
    shutil.copytree(source_project, project)
    set_pairs(project, keep_out=str(tmp_path / "bench"))
    run_stage("pairs", None, project)
    set_pairs(project, keep_out=str(tmp_path / "bench"), seed=5)
    before = (project / "data/pairs/train.parquet").read_bytes()
    with pytest.raises(DataError, match=r"[12] prompts and [24] pictures of the benchmark occur in training"):
        run_stage("pairs", None, project)
    assert (project / "data/pairs/train.parquet").read_bytes() == before, "the out of the last good run stays"


def test_parquet_loads_with_its_pictures_decoded_and_a_card(source_project: Path, tmp_path: Path) -> None:
    command.export(source_project, "parquet", tmp_path / "out", "cc-by-4.0")
    cache = str(tmp_path / "cache")
    pairs = datasets.load_dataset(str(tmp_path / "out"), "pairs", cache_dir=cache)  # by the card's front matter
    assert len(pairs["train"]) == len(labels(source_project, "train"))
    row = pairs["train"][0]
    pair = labels(source_project, "train").set_index("pair_id").loc[row["pair_id"]]
    assert row["first"].convert("RGB").tobytes() == store(source_project).panel(pair["first"]).tobytes()
    assert (row["label"], row["answer"]) == (pair["label"], pair["answer"])
    ranked = datasets.load_dataset(str(tmp_path / "out"), "benchmark", cache_dir=cache)["test"]
    assert len(ranked[0]["candidates"]) == 4 and ranked[0]["candidates"][0].size == (32, 32)
    assert sorted(ranked[0]["ranking"]) == [0, 1, 2, 3]
    card = (tmp_path / "out/README.md").read_text()
    assert yaml.safe_load(card.split("---")[1])["license"] == "cc-by-4.0" and "| Kendall's W | 0.812 |" in card
    with pytest.raises(DataError, match="out"):
        command.export(source_project, "parquet", tmp_path / "out", "other")


def bench(root: Path, **changes: Any) -> Path:
    """A sound ranking, then one with changes."""
    (root / "images/p").mkdir(parents=True)
    for name, side in (("0_0", 8), ("0_1", 8), ("1_1", 8), ("big", 9)):
        Image.new("RGB", (side, side)).save(root / f"images/p/{name}.png")
    shutil.copytree(root / "images/p", root / "images/marked")
    (root / "images/p/empty.png").write_bytes(b"")
    good = {"folder": "p", "ref_image": "0_0.png", "comp_images": ["0_1.png", "1_1.png"]}
    good |= {"rank_images": ["1_1.png", "0_1.png"]}
    prompts = [{"idx": "p", "prompt": "a cat", "theme": "cats"}, {"idx": "marked", "prompt": "<|im_end|>"}]
    (root / rank_bench.PROMPTS).write_text("\n".join(map(json.dumps, prompts)))
    (root / rank_bench.RANKS).write_text(json.dumps(good) + "\n" + json.dumps({**good, **changes}))
    return root


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"rank_images": ["1_1.png", "1_1.png"]}, "ranking: rank_images"),
        ({"comp_images": ["0_1.png", "0_1.png"], "rank_images": ["0_1.png", "0_1.png"]}, "ranking: rank_images"),
        ({"ref_image": "none.png"}, "picture: .*none.png"),
        ({"ref_image": "empty.png"}, "picture: .*empty.png"),
        ({"ref_image": "big.png"}, "picture: p/big.png is 9 x 9 px"),
        ({"ref_image": "../../prompt_data.jsonl"}, "picture: '../../prompt_data.jsonl'"),
        ({"ref_image": "/etc/hostname"}, "picture: '/etc/hostname'"),
        ({"folder": "q"}, "prompt: .*'q'"),
        ({"folder": "marked"}, "prompt: .*'marked'"),
        ({}, "duplicate"),
    ],
)
def test_bad_rankings_are_counted_with_file_and_line(tmp_path: Path, changes: dict[str, Any], cause: str) -> None:
    benchmark = rank_bench.read_rank_bench(bench(tmp_path / "bench", **changes))
    ((place, message),) = benchmark.rejected
    assert len(benchmark.table) == 1 and place.endswith("consistency_full_rank.jsonl:2") and re.match(cause, message), (
        message
    )


def test_a_benchmark_that_is_cut_off_loses_a_line_that_is_counted(tmp_path: Path) -> None:
    folder = bench(tmp_path / "bench")
    file = folder / rank_bench.RANKS
    file.write_text(file.read_text()[:-9])
    figures = command.import_dataset("rank_bench", folder, tmp_path / "out").figures
    assert [figures[name] for name in ("benchmark", "prompts", "pictures", "rejected.line")] == [1, 2, 1, 1]
    (line,) = (tmp_path / "out/rejected.jsonl").read_text().splitlines()
    assert json.loads(line)["place"].endswith(":2")
    file.write_text(json.dumps({"folder": "q"}))
    with pytest.raises(DataError, match="none of its 1 rankings"):
        command.import_dataset("rank_bench", folder, tmp_path / "other")
    assert not (tmp_path / "other").exists() and not list(tmp_path.glob("*.part"))
