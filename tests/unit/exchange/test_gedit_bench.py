"""GEdit-Bench as it is published: tables with embedded pictures, good rows kept and bad ones counted."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from paco_core.cli.exchange import bring
from paco_core.data.prompts.edit_prompts import read_rows
from paco_core.io.files import DataError


def stored(colour: str, side: int = 16) -> dict[str, Any]:
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(buffer, format="PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def row(key: str, colour: str = "red", **changes: Any) -> dict[str, Any]:
    return {
        "key": key, "task_type": "color_alter", "instruction": "Make it blue.", "instruction_language": "en",
        "input_image": stored(colour), "input_image_raw": stored(colour), "Intersection_exist": True,
    } | changes  # fmt: skip


def tables(folder: Path, *parts: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    for number, rows in enumerate(parts):
        pd.DataFrame(rows).to_parquet(folder / f"train-{number:05d}.parquet")
    return folder


def test_both_languages_and_their_picture_are_taken(tmp_path: Path) -> None:
    source = tables(
        tmp_path / "hub",
        [row("a"), row("b", instruction="把它变成蓝色", instruction_language="cn", Intersection_exist=False)],
        [row("c", "green", task_type="subject-add")],
    )
    counts = bring("gedit", source, tmp_path / "out").figures
    assert [counts[name] for name in ("edits", "pictures", "language.cn", "language.en")] == [3, 2, 1, 2]
    found = read_rows(tmp_path / "out/edits.jsonl")
    assert [r.idx for r in found.records] == ["a", "b", "c"] and not found.rejected
    assert [r.language for r in found.records] == ["en", "cn", "en"] and found.records[1].prompt == "把它变成蓝色"
    assert [(r.model_extra or {})["intersection"] for r in found.records] == [True, False, True]
    assert found.records[0].references == found.records[1].references != found.records[2].references


def test_the_split_of_paco_grpo_is_taken(tmp_path: Path) -> None:
    rows = [{"prompt": "Make it blue.", "image": stored("red"), "instruction_language": "en"}]
    bring("gedit", tables(tmp_path / "split", rows) / "train-00000.parquet", tmp_path / "out")
    assert read_rows(tmp_path / "out/edits.jsonl").records[0].prompt == "Make it blue."


#: What is wrong with a row -> the kind of its cause.
BAD: list[tuple[dict[str, Any], str]] = [
    (row("x1", instruction=""), "record"),
    (row("x2", task_type="nonsense"), "record"),
    (row("x3", instruction_language="fr"), "record"),
    (row("x4", instruction="Make it <|im_end|>."), "record"),
    (row("/etc/passwd"), "record"),
    (row("x5", input_image={"bytes": stored("red")["bytes"][:40], "path": None}), "picture"),
    (row("x6", input_image={"bytes": b"", "path": None}), "picture"),
    (row("good"), "duplicate"),
]


def test_bad_rows_are_left_out_with_file_row_and_cause(tmp_path: Path) -> None:
    rows = [row("good"), *(bad for bad, _ in BAD)]
    assert bring("gedit", tables(tmp_path / "hub", rows), tmp_path / "out").figures["rejected.record"] == 5
    rejected = [json.loads(line) for line in (tmp_path / "out/rejected.jsonl").read_text().splitlines()]
    assert [one["place"].rpartition(": ")[2] for one in rejected] == [f"row {n}" for n in range(1, len(rows))]
    assert [one["cause"].split(":")[0] for one in rejected] == [kind for _, kind in BAD]


@pytest.mark.parametrize("damage", ["cut", "no file", "all bad"])
def test_what_cannot_be_used_leaves_nothing_behind(tmp_path: Path, damage: str) -> None:
    source = tables(tmp_path / "hub", [row("a") if damage != "all bad" else BAD[0][0]])
    file = source / "train-00000.parquet"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-20])
    if damage == "no file":
        file.unlink()
    with pytest.raises(DataError):
        bring("gedit", source, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))
