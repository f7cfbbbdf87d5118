"""GEdit-Bench as it is published: tables with embedded pictures, good rows kept and bad ones counted."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from paco_core.cli import main
from paco_core.data.prompts.edit_prompts import read_rows
from paco_core.io.files import DataError


def png(colour: str, side: int = 16) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(buffer, format="PNG")
    return buffer.getvalue()


def row(key: str, colour: str = "red", **changes: Any) -> dict[str, Any]:
    return {
        "key": key, "task_type": "color_alter", "instruction": "Make it blue.", "instruction_language": "en",
        "input_image": {"bytes": png(colour), "path": None}, "input_image_raw": {"bytes": png(colour), "path": None},
        "Intersection_exist": True,
    } | changes  # fmt: skip


def tables(folder: Path, *parts: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    for number, rows in enumerate(parts):
        pd.DataFrame(rows).to_parquet(folder / f"train-{number:05d}.parquet")
    return folder


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_both_languages_and_their_picture_are_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tables(
        tmp_path / "hub",
        [row("a"), row("b", instruction="把它变成蓝色", instruction_language="cn", Intersection_exist=False)],
        [row("c", "green", task_type="subject-add")],
    )
    main(["dataset", "import", "gedit", str(source), str(tmp_path / "out")])
    assert "edits 3, pictures 2, language.cn 1, language.en 2" in capsys.readouterr().out
    found = read_rows(tmp_path / "out/edits.jsonl")
    assert [r.idx for r in found.records] == ["a", "b", "c"] and not found.rejected
    assert [r.language for r in found.records] == ["en", "cn", "en"] and found.records[1].prompt == "把它变成蓝色"
    assert [(r.model_extra or {})["intersection"] for r in found.records] == [True, False, True]
    assert found.records[0].references == found.records[1].references != found.records[2].references


def test_the_split_of_paco_grpo_is_taken(tmp_path: Path) -> None:
    rows = [{"prompt": "Make it blue.", "image": {"bytes": png("red"), "path": None}, "instruction_language": "en"}]
    source = tables(tmp_path / "split", rows)
    main(["dataset", "import", "gedit", str(source / "train-00000.parquet"), str(tmp_path / "out")])
    assert read_rows(tmp_path / "out/edits.jsonl").records[0].prompt == "Make it blue."


BAD = {
    "instruction": row("x1", instruction=""),
    "language": row("x2", instruction_language="fr"),
    "task": row("x3", task_type="nonsense"),
    "key": row("../x4"),
    "cut picture": row("x5", input_image={"bytes": png("blue")[:40], "path": None}),
    "no picture": row("x6", input_image={"bytes": b"", "path": None}),
    "duplicate": row("good"),
}


def test_bad_rows_are_left_out_with_file_row_and_cause(tmp_path: Path) -> None:
    source = tables(tmp_path / "hub", [row("good"), *BAD.values()])
    main(["dataset", "import", "gedit", str(source), str(tmp_path / "out")])
    rejected = lines(tmp_path / "out/rejected.jsonl")
    assert [r["place"].rpartition(": ")[2] for r in rejected] == [f"row {n}" for n in range(1, 8)]
    causes = [r["cause"].split(":")[0] for r in rejected]
    assert causes == ["record"] * 4 + ["picture"] * 2 + ["duplicate"]
    assert len(lines(tmp_path / "out/edits.jsonl")) == 1
    assert json.loads((tmp_path / "out/summary.json").read_text())["rejected.record"] == 4


@pytest.mark.parametrize("damage", ["cut", "empty folder", "all bad"])
def test_what_cannot_be_used_leaves_nothing_behind(tmp_path: Path, damage: str) -> None:
    source = tables(tmp_path / "hub", [row("a")] if damage != "all bad" else [BAD["task"]])
    file = source / "train-00000.parquet"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-20])
    if damage == "empty folder":
        file.unlink()
    said = {"cut": "not a readable Parquet file", "empty folder": "no Parquet file", "all bad": "none of its 1 rows"}
    with pytest.raises((DataError, SystemExit)) as raised:
        main(["dataset", "import", "gedit", str(source), str(tmp_path / "out")])
    assert said[damage] in str(raised.value) or isinstance(raised.value, SystemExit)
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))
