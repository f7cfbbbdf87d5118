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
def made(tmp_path_factory: pytest.TempPathFactory, repository: Path, mlflow_template: Path) -> Path:
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
    told = {"source": "people", "annotators": annotators, "shared_instances": 9, "kendall_w": 0.8125}
    write_json(root / "data/annotations/agreement.json", told)
    return root


def set_pairs(root: Path, **changes: Any) -> None:
    tree = yaml.safe_load((root / "params.yaml").read_text())
    tree["pairs"] |= {**changes, "editing": tree["pairs"]["editing"] | changes.get("editing", {})}
    (root / "params.yaml").write_text(yaml.safe_dump(tree))


def labels(root: Path, split: str) -> pd.DataFrame:
    return pd.read_parquet(root / f"data/cot_labels/{split}.parquet")


def store(root: Path) -> PanelStore:
    return PanelStore.below(root / "data/grids", root / "data/pairs")


@pytest.mark.slow
def test_paco_dataset_loads_and_its_rows_hold_question_answer_and_pictures(made: Path, tmp_path: Path) -> None:
    command.export(made, "paco_dataset", tmp_path / "out", "cc-by-4.0")
    info = json.loads((tmp_path / "out/dataset_info.json").read_text())
    assert info["paco_train"]["formatting"] == "sharegpt" and info["paco_train"]["columns"]["images"] == "images"
    splits = {split: str(tmp_path / f"out/{info[f'paco_{split}']['file_name']}") for split in ("train", "validation")}
    found = datasets.load_dataset("json", data_files=splits, cache_dir=str(tmp_path / "cache"))
    want, panels = labels(made, "train").set_index("pair_id"), store(made)
    assert len(found["train"]) == len(want) and len(found["validation"]) == len(labels(made, "validation"))
    for row in found["train"]:
        pair = want.loc[row["id"]]
        edit = isinstance(pair["instruction"], str)
        question = (
            PairQuestion(pair["theme"], pair["instruction"], pair["question"]) if edit else PairQuestion(pair["theme"])
        )
        assert row["messages"][0] == {"role": "user", "content": "<image><image>" + question.text("theme")}
        assert row["messages"][1] == {"role": "assistant", "content": pair["answer"]}
        shown = [Image.open(tmp_path / "out" / name).convert("RGB").tobytes() for name in row["images"]]
        assert shown == [panels.panel(pair[side]).tobytes() for side in ("first", "second")]


@pytest.mark.slow
@pytest.mark.usefixtures("sender_in_a_thread")
def test_an_exported_paco_dataset_comes_back_and_can_be_added_to_the_pairs(made: Path, tmp_path: Path) -> None:
    command.export(made, "paco_dataset", tmp_path / "out", "other")
    told = command.bring("paco_dataset", tmp_path / "out", tmp_path / "back")
    before, after = labels(made, "train"), pd.read_parquet(tmp_path / "back/train.parquet")
    assert f"train {len(before)}" in told and "rejected" not in told
    panels = PanelStore.below(tmp_path / "back")
    examples = read_examples(tmp_path / "back/train.parquet", panels.panel, "theme")
    originals = read_examples(made / "data/cot_labels/train.parquet", store(made).panel, "theme")

    def facts(given: Any) -> list[Any]:
        return sorted((e.instruction, e.answer, *(image.tobytes() for image in e.images)) for e in given)

    assert facts(examples) == facts(originals)
    assert after["instruction"].notna().sum() == before["instruction"].notna().sum() > 0
    project = tmp_path / "project"
    shutil.copytree(made, project)
    shutil.rmtree(project / "data/pairs")
    set_pairs(project, imported=str(tmp_path / "back"), editing={"count": 0}, balance=False)
    run_stage("pairs", None, project)
    parts = [pd.read_parquet(project / f"data/pairs/{split}.parquet") for split in ("train", "validation")]
    joined = pd.concat(parts)
    given = joined[joined["answer"].notna()]
    assert set(given["answer"]) <= set(before["answer"]) | set(labels(made, "validation")["answer"]) and len(given) > 20
    assert not set(parts[0]["prompt_id"]) & set(parts[1]["prompt_id"])
    assert store(project).panel(given["first"].iloc[0]).size == (32, 32)
    set_pairs(project, seed=5)  # now panels of held-out grids come in from outside, one by one and under other ids
    with pytest.raises(DataError, match=r"[1-9]\d* prompts and [1-9]\d* pictures .* theme-"):  # also their themes
        run_stage("pairs", None, project)


def test_rank_bench_loads_comes_back_and_serves_as_benchmark(made: Path, tmp_path: Path) -> None:
    command.export(made, "rank_bench", tmp_path / "out", "other")
    found = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))["test"]
    prompts = datasets.load_dataset(str(tmp_path / "out"), "prompts", cache_dir=str(tmp_path / "cache"))["test"]
    assert {row["folder"] for row in found} <= {row["idx"] for row in prompts}
    want = pd.read_parquet(made / "data/pairs/benchmark.parquet")
    assert len(found) == len(want)
    row = found[0]
    assert len(row["comp_images"]) == 4 and sorted(row["rank_images"]) == sorted(row["comp_images"])
    assert (tmp_path / "out/images" / row["folder"] / row["ref_image"]).is_file()
    seeds = {name.removesuffix(".png").partition("_")[2] for name in row["comp_images"]}
    assert len(seeds) == 1 and [name[0] for name in row["comp_images"]] == ["0", "1", "2", "3"]
    command.bring("rank_bench", tmp_path / "out", tmp_path / "back")
    back, panels = read_rankings(tmp_path / "back/benchmark.parquet"), PanelStore.below(tmp_path / "back")
    original = read_rankings(made / "data/pairs/benchmark.parquet")

    def facts(instances: Any, of: PanelStore) -> list[Any]:
        pictures = ((i, [of.panel(ref).tobytes() for ref in (i.reference, *i.candidates)]) for i in instances)
        return sorted((i.theme, i.ranking, shown) for i, shown in pictures)

    assert facts(back, panels) == facts(original, store(made))
    read = rank_bench.read(tmp_path / "out")
    assert read.panel(read.table["reference"].iloc[0]).size == (32, 32) and not read.rejected


@pytest.mark.slow
@pytest.mark.usefixtures("sender_in_a_thread")
def test_a_foreign_benchmark_is_kept_out_of_training(made: Path, tmp_path: Path) -> None:
    """Its own benchmark, under other seeds of the split, lies in the training set: the stage refuses."""
    command.export(made, "rank_bench", tmp_path / "bench", "other")
    project = tmp_path / "project"
    shutil.copytree(made, project)
    set_pairs(project, keep_out=str(tmp_path / "bench"))
    run_stage("pairs", None, project)
    set_pairs(project, keep_out=str(tmp_path / "bench"), seed=5)
    before = (project / "data/pairs/train.parquet").read_bytes()
    with pytest.raises(DataError, match=r"[12] prompts and [24] pictures of the benchmark occur in training"):
        run_stage("pairs", None, project)
    assert (project / "data/pairs/train.parquet").read_bytes() == before, "the out of the last good run stays"


def test_parquet_loads_with_its_pictures_decoded(made: Path, tmp_path: Path) -> None:
    command.export(made, "parquet", tmp_path / "out", "cc-by-4.0")
    cache = str(tmp_path / "cache")
    pairs = datasets.load_dataset(str(tmp_path / "out"), "pairs", cache_dir=cache)  # by the card's front matter
    want = labels(made, "train")
    assert {split: len(rows) for split, rows in pairs.items()}["train"] == len(want)
    row = pairs["train"][0]
    pair = want.set_index("pair_id").loc[row["pair_id"]]
    assert row["first"].convert("RGB").tobytes() == store(made).panel(pair["first"]).tobytes()
    assert (row["label"], row["answer"]) == (pair["label"], pair["answer"])
    ranked = datasets.load_dataset(str(tmp_path / "out"), "benchmark", cache_dir=cache)["test"]
    assert len(ranked[0]["candidates"]) == 4 and ranked[0]["candidates"][0].size == (32, 32)
    assert sorted(ranked[0]["ranking"]) == [0, 1, 2, 3]


def test_the_card_tells_counts_rules_agreement_and_licences(made: Path, tmp_path: Path) -> None:
    command.export(made, "parquet", tmp_path / "out", "cc-by-4.0")
    text = (tmp_path / "out/README.md").read_text()
    figures = json.loads((made / "data/metrics/pairs.json").read_text())
    assert yaml.safe_load(text.split("---")[1])["license"] == "cc-by-4.0"
    for line in (
        f"| training pairs | {figures['train']} |", f"| benchmark rankings | {figures['benchmark']} |",
        "`top1_bottom1`", "2 annotators (source: people)", "| Kendall's W | 0.812 |", "licence: apache-2.0",
        "| pairwise agreement | not known (one annotator) |",
    ):  # fmt: skip
        assert line in text, line
    with pytest.raises(DataError, match="exists already"):
        command.export(made, "parquet", tmp_path / "out", "other")


def bench(root: Path, **changes: Any) -> Path:
    """A sound ranking, then one with changes."""
    (root / "images/p").mkdir(parents=True)
    for name, side in (("0_0", 8), ("0_1", 8), ("1_1", 8), ("big", 9)):
        Image.new("RGB", (side, side)).save(root / f"images/p/{name}.png")
    (root / "images/p/empty.png").write_bytes(b"")
    good = {"folder": "p", "ref_image": "0_0.png", "comp_images": ["0_1.png", "1_1.png"]}
    good |= {"rank_images": ["1_1.png", "0_1.png"]}
    (root / rank_bench.PROMPTS).write_text(json.dumps({"idx": "p", "prompt": "a cat", "theme": "cats"}))
    (root / rank_bench.RANKS).write_text(json.dumps(good) + "\n" + json.dumps({**good, **changes}))
    return root


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"rank_images": ["1_1.png", "1_1.png"]}, "ranking: rank_images"),
        ({"comp_images": ["0_1.png", "0_1.png"], "rank_images": ["0_1.png", "0_1.png"]}, "ranking: rank_images"),
        ({"ref_image": "none.png"}, "picture: .*none.png: no such picture"),
        ({"ref_image": "empty.png"}, "picture: .*empty.png: zero bytes"),
        ({"ref_image": "big.png"}, "picture: p/big.png is 9 x 9 px, others of its prompt 8 x 8"),
        ({"ref_image": "../../prompt_data.jsonl"}, "picture: '../../prompt_data.jsonl' is not a picture name"),
        ({"folder": "q"}, "prompt: prompt_data.jsonl has none with idx 'q'"),
        ({}, "duplicate"),
    ],
)
def test_bad_rankings_are_counted_with_file_and_line(tmp_path: Path, changes: dict[str, Any], cause: str) -> None:
    found = rank_bench.read(bench(tmp_path / "bench", **changes))
    ((place, told),) = found.rejected
    assert len(found.table) == 1 and place.endswith("consistency_full_rank.jsonl:2") and re.match(cause, told), told
    command.bring("rank_bench", tmp_path / "bench", tmp_path / "out")
    (line,) = (tmp_path / "out/rejected.jsonl").read_text().splitlines()
    assert json.loads(line)["place"] == place


def test_a_benchmark_that_is_cut_off_loses_a_line_that_is_counted(tmp_path: Path) -> None:
    folder = bench(tmp_path / "bench")
    file = folder / rank_bench.RANKS
    file.write_text(file.read_text()[:-9])
    made = command.bring("rank_bench", folder, tmp_path / "out")
    assert "benchmark 1, prompts 1, pictures 1, rejected.line 1" in made
    (line,) = (tmp_path / "out/rejected.jsonl").read_text().splitlines()
    assert json.loads(line)["place"].endswith(":2") and "cut off" in json.loads(line)["cause"]
    file.write_text(json.dumps({"folder": "q"}))
    with pytest.raises(DataError, match="none of its 1 rankings can be used, e.g. .*:1: record"):
        command.bring("rank_bench", folder, tmp_path / "other")
    assert not (tmp_path / "other").exists() and not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("columns", "tags", "messages", "images"),
    [
        (None, None, "messages", "images"),
        (None, None, "conversations", "images"),
        ({"messages": "talk"}, None, "talk", "images"),
        (
            {"messages": "talk", "images": "pictures"},
            {"role_tag": "who", "content_tag": "what", "user_tag": "me", "assistant_tag": "you"},
            "talk",
            "pictures",
        ),
    ],
)
def test_columns_and_tags_of_dataset_info_are_honoured(
    tmp_path: Path, columns: Any, tags: dict[str, str] | None, messages: str, images: str
) -> None:
    role, content, user, assistant = (tags or {}).values() or ("from", "value", "human", "gpt")
    if messages == "messages":
        role, content, user, assistant = "role", "content", "user", "assistant"
    folder = tmp_path / "in"
    folder.mkdir()
    for name, colour in (("a", "red"), ("b", "blue")):
        Image.new("RGB", (8, 8), colour).save(folder / f"{name}.png")
    turns = [
        {role: user, content: "<image><image>" + PairQuestion(theme="cats").text("theme")},
        {role: assistant, content: "Yes."},
    ]
    (folder / "rows.json").write_text(json.dumps([{messages: turns, images: ["a.png", "b.png"]}]))
    entry = {"file_name": "rows.json", "formatting": "sharegpt", "columns": columns, "tags": tags}
    write_json(folder / "dataset_info.json", {"x": entry})
    counts = command.bring("paco_dataset", folder, tmp_path / "out").figures
    assert (counts["x"], counts["pictures"]) == (1, 2)
    write_json(folder / "dataset_info.json", {})
    with pytest.raises(DataError, match="registers no ShareGPT file"):
        command.bring("paco_dataset", folder, tmp_path / "other")


@pytest.mark.slow
@pytest.mark.usefixtures("sender_in_a_thread")
def test_the_published_split_is_kept(made: Path, tmp_path: Path) -> None:
    """Entries under the released names: what is published to test on validates, and all the rest trains."""
    command.export(made, "paco_dataset", tmp_path / "out", "other")
    info = json.loads((tmp_path / "out/dataset_info.json").read_text())
    names = {"paco_train": "consistency_reward_cot_train", "paco_validation": "consistency_reward_cot_test"}
    write_json(tmp_path / "out/dataset_info.json", {names[name]: entry for name, entry in info.items()})
    command.bring("paco_dataset", tmp_path / "out", tmp_path / "back")
    parts = [pd.read_parquet(tmp_path / f"back/{name}.parquet") for name in names.values()]
    project = tmp_path / "project"
    shutil.copytree(made, project)
    shutil.rmtree(project / "data/pairs")
    set_pairs(project, imported=str(tmp_path / "back"), editing={"count": 0}, balance=False, leakage="report")
    run_stage("pairs", None, project)
    for part, table in zip(("train", "validation"), parts, strict=True):
        found = pd.read_parquet(project / f"data/pairs/{part}.parquet")
        assert set(table["pair_id"]) == set(found["pair_id"]) & set(pd.concat(parts)["pair_id"])


def test_trace_names_grid_seed_and_prompt(made: Path) -> None:
    row = labels(made, "train").query("instruction.isna()").iloc[0]
    grid = store(made).grids.index.loc[row["first"].partition("#")[0]]
    told = command.trace(made, row["pair_id"])
    assert f"grid {grid['id']}" in told and f"seed {grid['seed']}, prompt {row['prompt_id']}" in told
    assert "2x2 grid layout" in told
    instance = pd.read_parquet(made / "data/rankings/instances.parquet").iloc[0]
    assert command.trace(made, instance["instance_id"]).count("candidate") == 4
    with pytest.raises(DataError, match="nothing: no pair and no ranking instance"):
        command.trace(made, "nothing")
