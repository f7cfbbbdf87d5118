"""Files that are cut off, damaged or of another kind: one clear error that names them."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from PIL import Image

from paco_core.adapters.reader import CONFIG, WEIGHTS
from paco_core.benchmarks.public_files import read_edit_bench
from paco_core.config.params import LoraParams
from paco_core.data.annotation import votes
from paco_core.data.annotation.store import AnnotatorAnswer, AnswerStore
from paco_core.io.files import DataError
from paco_core.io.shards import ShardReader, encode_png, write_shard
from paco_core.reward_model import checkpoint, lora
from paco_core.reward_model.examples import read_examples
from paco_core.reward_model.golden import FILE, read_golden
from paco_core.reward_model.network import Network
from paco_core.training import checkpoint as policies
from paco_core.training.processes import Processes
from paco_core.training.updates import Updates
from tests.support import tiny_vlm


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vlm.build(tmp_path_factory.mktemp("damaged") / "tiny")


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged") / "adapter"
    model = Network.load(base).model
    wrapped = lora.attach_lora(model, LoraParams(rank=2, alpha=4, targets=["q_proj"]), str(base), 0)
    lora.save_lora(wrapped, folder, lora.base_digest(model))
    return folder


def cut(source: Path, target: Path, name: str, size: int) -> Path:
    shutil.copytree(source, target)
    data = (target / name).read_bytes()
    (target / name).write_bytes(data[:size])
    return target


@pytest.mark.parametrize(("name", "size"), [("model.safetensors", 900), ("model.safetensors", 0), ("config.json", 40)])
def test_a_model_that_is_cut_off(base: Path, tmp_path: Path, name: str, size: int) -> None:
    with pytest.raises(DataError, match=f"model/{name}"):
        Network.load(cut(base, tmp_path / "model", name, size))


@pytest.mark.parametrize(("name", "size"), [(WEIGHTS, 200), (CONFIG, 50)])
def test_an_adapter_that_is_cut_off(base: Path, adapter: Path, tmp_path: Path, name: str, size: int) -> None:
    with pytest.raises(DataError, match=name):
        lora.load_lora(Network.load(base).model, cut(adapter, tmp_path / "data/reward_lora/adapter", name, size))


def saved_checkpoint(folder: Path) -> tuple[dict[str, torch.nn.Parameter], Updates]:
    weight = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    folder.mkdir()
    updates = Updates({"a": weight}, optimizer, 1.0, Processes())
    progress = checkpoint.TrainingProgress(1, 0, 3, [{"step": 3.0}])
    checkpoint.save_reward_checkpoint(folder, "key", progress, {"a": weight}, updates.moments())
    return {"a": weight}, updates


@pytest.mark.parametrize(
    ("name", "value"), [("done", True), ("within", None), ("epoch", "x"), ("log", 3), ("best", []), ("tensors", None)]
)
def test_a_checkpoint_of_the_reward_that_is_none(tmp_path: Path, name: str, value: Any) -> None:
    parameters, updates = saved_checkpoint(tmp_path / "kept")
    place = tmp_path / "kept" / "checkpoint-00003"
    if name == "tensors":
        (place / policies.TENSORS).write_bytes((place / policies.TENSORS).read_bytes()[:100])
    else:
        state = json.loads((place / policies.STATE).read_text())
        (state if name == "done" else state["notes"])[name] = value
        (place / policies.STATE).write_text(json.dumps(state))
    with pytest.raises(DataError, match="checkpoint-00003"):
        checkpoint.restore_reward_checkpoint(tmp_path / "kept", "key", parameters, updates)


@pytest.mark.parametrize("content", [{}, {"dtype": "float32", "pairs": [{"first": 1}]}, []])
def test_golden_pairs_that_are_none(tmp_path: Path, content: Any) -> None:
    (tmp_path / FILE).write_text(json.dumps(content))
    with pytest.raises(DataError, match=FILE):
        read_golden(tmp_path)


def test_a_picture_with_other_bytes_than_its_index_says(tmp_path: Path) -> None:
    """Zeroed bytes within a PNG may decode to other pixels without a word."""
    png = encode_png(Image.effect_noise((64, 64), 90).convert("RGB"))
    row = {"id": "a", "md5": hashlib.md5(png, usedforsecurity=False).hexdigest()}
    write_shard(tmp_path / "data/grids/shard-0", [row], {"a": png})
    reader = ShardReader.below(tmp_path / "data/grids")
    assert reader.read("a").size == (64, 64)
    tar = tmp_path / "data/grids/shard-0/images.tar"
    data = bytearray(tar.read_bytes())
    data[1200:1220] = bytes(20)
    tar.write_bytes(data)
    with pytest.raises(DataError, match=r"images.tar:a.png: .*md5"):
        reader.read("a")


def test_rankings_of_other_types() -> None:
    table = votes.to_table([votes.Annotation("i1", "a", [1, 0], [0.0, 1.0], False)]).assign(scores=-1)
    with pytest.raises(DataError, match="instance i1"):
        votes.from_table(table)


@pytest.mark.parametrize(("column", "value"), [("answer", 2), ("theme", None)])
def test_labelled_pairs_of_other_types(tmp_path: Path, column: str, value: Any) -> None:
    row = {"pair_id": "p", "theme": "t", "first": "g#0", "second": "g#1", "label": "Yes", "answer": "Yes. It is."}
    pd.DataFrame([{**row, column: value}]).to_parquet(tmp_path / "train.parquet")
    with pytest.raises(DataError, match=f"train.parquet: pair p: .*{column}"):
        read_examples(tmp_path / "train.parquet", lambda _ref: Image.new("RGB", (8, 8)), "theme")


def test_a_page_of_edit_reward_bench_that_is_damaged(tmp_path: Path) -> None:
    picture = {"bytes": encode_png(Image.effect_noise((64, 64), 90)), "path": None}
    row = {"key": ["a", "b"], "instruction": "make it red", "input_image": picture, "output_images": [picture] * 2}
    pd.DataFrame([{**row, "task_type": "color", "dimension": "overall"}]).to_parquet(tmp_path / "x.parquet")
    file = tmp_path / "x.parquet"
    file.write_bytes(b"PAR1" + bytes(300) + file.read_bytes()[304:])
    with pytest.raises(DataError, match=r"x.parquet"):
        read_edit_bench(tmp_path)


@pytest.mark.slow
def test_people_s_answers_whose_pages_are_damaged(tmp_path: Path) -> None:
    with AnswerStore(tmp_path / "people.sqlite", create=True) as store:
        store.recruit(1)
        for n in range(400):
            store.record(AnnotatorAnswer("annotator-1", f"i{n}", 1, "ranked", (1, 0), (0, 1), 1.0))
    data = bytearray((tmp_path / "people.sqlite").read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    (tmp_path / "people.sqlite").write_bytes(data)
    with (
        AnswerStore(tmp_path / "people.sqlite") as store,
        pytest.raises(DataError, match="cannot be read"),
    ):
        store.every()
