"""Pictures of other data sets on their way in: as they are seen, and a plain PNG with the bytes that it has."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from paco_core.exchange.gedit_bench import import_gedit
from paco_core.exchange.panel_files import PictureFiles
from paco_core.io.files import read_jsonl
from paco_core.io.pictures import read_image
from paco_core.io.shards import ShardReader
from tests.support.carriers import carriers, drawing, encoded


def test_a_shard_of_foreign_files_holds_what_is_seen_in_them(tmp_path: Path) -> None:
    files, named, found = carriers(), dict[str, str](), PictureFiles()
    for number, (name, (data, _)) in enumerate(files.items()):
        path = tmp_path / f"{number}.file"
        path.write_bytes(data)
        named[name] = found.add(path, "p")
    found.write(tmp_path / "shards" / "imported")
    reader = ShardReader.below(tmp_path / "shards")
    for name, (_, seen) in files.items():
        assert reader.read(named[name]).tobytes() == seen.tobytes(), name
    upright = {name for name, (_, seen) in files.items() if seen.tobytes() == drawing().tobytes()}
    plain = {"8-bit RGB, PNG", "ICC profile, PNG"}  # kept as they are: the reader takes no profile into account
    assert len({named[name] for name in upright - plain}) == 1 and len(upright) > 10
    assert found[named["8-bit RGB, PNG"]] == files["8-bit RGB, PNG"][0]


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
    made = {row["key"]: tmp_path / "out" / row["input_image"] for _, row in read_jsonl(tmp_path / "out/edits.jsonl")}
    for number, (name, (_, seen)) in enumerate(files.items()):
        assert read_image(made[f"k{number}"]).tobytes() == seen.tobytes(), name
