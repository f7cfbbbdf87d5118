"""GEdit-Bench as it is published, good rows kept and bad ones counted; foreign pictures as they are seen."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from paco_core.cli.exchange import import_dataset
from paco_core.data.prompts.edit_prompts import read_edit_rows
from paco_core.exchange.gedit_bench import import_gedit
from paco_core.exchange.panel_files import PictureFiles
from paco_core.io.files import DataError, read_jsonl
from paco_core.io.pictures import read_image
from paco_core.io.shards import ShardReader
from tests.support.carriers import carriers, drawing, encoded


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
    counts = import_dataset("gedit", source, tmp_path / "out").figures
    assert [counts[name] for name in ("edits", "pictures", "language.cn", "language.en")] == [3, 2, 1, 2]
    prompts = read_edit_rows(tmp_path / "out/edits.jsonl")
    assert [r.idx for r in prompts.records] == ["a", "b", "c"] and not prompts.rejected
    assert [r.language for r in prompts.records] == ["en", "cn", "en"] and prompts.records[1].prompt == "把它变成蓝色"
    assert [(r.model_extra or {})["intersection"] for r in prompts.records] == [True, False, True]
    assert prompts.records[0].references == prompts.records[1].references != prompts.records[2].references


def test_the_split_of_paco_grpo_is_taken(tmp_path: Path) -> None:
    rows = [{"prompt": "Make it blue.", "image": stored("red"), "instruction_language": "en"}]
    import_dataset("gedit", tables(tmp_path / "split", rows) / "train-00000.parquet", tmp_path / "out")
    assert read_edit_rows(tmp_path / "out/edits.jsonl").records[0].prompt == "Make it blue."


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
    assert import_dataset("gedit", tables(tmp_path / "hub", rows), tmp_path / "out").figures["rejected.record"] == 5
    rejected = [json.loads(line) for line in (tmp_path / "out/rejected.jsonl").read_text().splitlines()]
    assert [row["place"].rpartition(": ")[2] for row in rejected] == [f"row {n}" for n in range(1, len(rows))]
    assert [row["cause"].split(":")[0] for row in rejected] == [kind for _, kind in BAD]


@pytest.mark.parametrize("damage", ["cut", "no file", "all bad"])
def test_what_cannot_be_used_leaves_nothing_behind(tmp_path: Path, damage: str) -> None:
    source = tables(tmp_path / "hub", [row("a") if damage != "all bad" else BAD[0][0]])
    file = source / "train-00000.parquet"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-20])
    if damage == "no file":
        file.unlink()
    with pytest.raises(DataError):
        import_dataset("gedit", source, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))


def test_a_shard_of_foreign_files_holds_what_is_seen_in_them(tmp_path: Path) -> None:
    files, names, pictures = carriers(), dict[str, str](), PictureFiles()
    for number, (name, (data, _)) in enumerate(files.items()):
        path = tmp_path / f"{number}.file"
        path.write_bytes(data)
        names[name] = pictures.add(path, "p")
    pictures.write(tmp_path / "shards" / "imported")
    reader = ShardReader.below(tmp_path / "shards")
    for name, (_, image) in files.items():
        assert reader.read(names[name]).tobytes() == image.tobytes(), name
    upright = {name for name, (_, image) in files.items() if image.tobytes() == drawing().tobytes()}
    plain = {"8-bit RGB, PNG", "ICC profile, PNG"}  # kept as they are: the reader takes no profile into account
    assert len({names[name] for name in upright - plain}) == 1 and len(upright) > 10
    assert pictures[names["8-bit RGB, PNG"]] == files["8-bit RGB, PNG"][0]


def test_cells_of_a_published_table_are_read_as_they_are_seen(tmp_path: Path) -> None:
    files = carriers()
    rows = [
        {"key": f"k{n}", "instruction": f"edit {n}", "input_image": {"bytes": data, "path": None}}
        for n, (data, _) in enumerate(files.values())
    ]
    rows.append({**rows[0], "key": "cut", "input_image": {"bytes": encoded(drawing())[:100], "path": None}})
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "table.parquet")
    counts = import_gedit(tmp_path / "table.parquet", tmp_path / "out")
    assert (counts["edits"], counts["rejected.picture"]) == (len(files), 1)
    paths = {row["key"]: tmp_path / "out" / row["input_image"] for _, row in read_jsonl(tmp_path / "out/edits.jsonl")}
    for number, (name, (_, image)) in enumerate(files.items()):
        assert read_image(paths[f"k{number}"]).tobytes() == image.tobytes(), name
