"""Description of outs: metrics, rows and columns, size. Every materialization shows it.

A stage that DVC restored or left alone reports nothing, but its outs are there.
"""

from __future__ import annotations

import csv
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_dvc.metrics import arrange_metrics, read_metrics
from dvc_project.lockfile import Entry
from dvc_project.project import DvcProject, ResolvedStage
from dvc_project.state import differing_outs

_TABLES = {".parquet", ".jsonl", ".csv"}
_TABLES_SHOWN = 8
_JSON_TYPES = {
    str: "string",
    bool: "bool",
    int: "int",
    float: "float",
    list: "list",
    dict: "object",
    type(None): "null",
}
_CSV_TYPES: tuple[tuple[str, Callable[[str], Any]], ...] = (("int", int), ("float", float), ("string", str))


@dataclass(frozen=True)
class TableFacts:
    """Rows and columns (name -> type) of one table."""

    rows: int
    columns: Mapping[str, str]


def describe_outs(
    project: DvcProject,
    stage: ResolvedStage,
    headline: Sequence[Sequence[str]] = (),
    describe: Callable[[str], str | None] = lambda _column: None,
) -> dict[str, Any]:
    """Metadata of a materialization from the files of the workspace.

    The metrics of the stage's metrics files, the ``headline`` first (:func:`dagster_dvc.metrics.arrange_metrics`); rows
    and columns of the main table (``meta.dagster.table``, else the largest), each column with its description by
    ``describe``; rows of the other tables; files and bytes of the outs.
    """
    metadata = arrange_metrics(read_metrics(project, stage), headline, stage.name)
    paths = [project.root / out.path for out in stage.outs if out.kind == "outs" and "://" not in out.path]
    sizes = dict(sorted(entry for path in paths for entry in _file_sizes(path)))
    metadata |= {"dvc/files": len(sizes), "dvc/bytes": sum(sizes.values())}
    if paths:
        metadata["dvc/path"] = dg.MetadataValue.path(str(paths[0]))
    tables = {file: facts for file in sizes if (facts := table_facts(file)) is not None}
    if tables:
        setting = str((stage.meta.get("dagster") or {}).get("table", ""))
        main = max(tables, key=lambda file: (bool(setting) and file.match(setting), tables[file].rows))
        columns = [dg.TableColumn(name, kind, describe(name)) for name, kind in tables[main].columns.items()]
        metadata |= {
            "dagster/row_count": tables[main].rows,
            "dagster/column_schema": dg.MetadataValue.table_schema(dg.TableSchema(columns)),
        }
        if len(tables) > 1:
            keys = {file: f"rows/{file.relative_to(_common(paths)).as_posix()}" for file in tables}
            metadata |= {keys[file]: tables[file].rows for file in list(tables)[:_TABLES_SHOWN]}
    return metadata


def holds_recorded(project: DvcProject, stage: ResolvedStage, entry: Entry) -> bool:
    """Whether the workspace holds the recorded version, byte for byte."""
    return not differing_outs(project.workspace, stage, entry)


def table_facts(file: Path) -> TableFacts | None:
    """Rows and columns of a Parquet, JSON Lines or CSV file; None for another kind or one that cannot be read."""
    try:
        match file.suffix:
            case ".parquet":
                return _parquet(file)
            case ".jsonl":
                with file.open(encoding="utf-8") as stream:
                    first = json.loads(next(stream, "{}"))
                    rows = sum(bool(line.strip()) for line in stream) + bool(first)
                return TableFacts(rows, {name: _JSON_TYPES[type(value)] for name, value in first.items()})
            case ".csv":
                return _csv(file)
    except (OSError, ValueError, AttributeError, csv.Error):
        return None
    return None


def _parquet(file: Path) -> TableFacts | None:
    try:
        from pyarrow import parquet
    except ImportError:  # a project without Parquet files needs no pyarrow
        return None
    table = parquet.ParquetFile(file)
    return TableFacts(table.metadata.num_rows, {f.name: str(f.type).replace("large_", "") for f in table.schema_arrow})


def _csv(file: Path) -> TableFacts:
    """The type of a column is the narrowest that all its values have; empty ones say nothing."""
    with file.open(encoding="utf-8", newline="") as stream:
        lines = csv.reader(stream)
        header = next(lines, [])
        narrowest, rows = [0] * len(header), 0
        for values in lines:
            rows += 1
            for column, value in enumerate(values[: len(header)]):
                while value and not _reads_as(narrowest[column], value):
                    narrowest[column] += 1
    return TableFacts(rows, {name: _CSV_TYPES[kind][0] for name, kind in zip(header, narrowest, strict=True)})


def _reads_as(kind: int, value: str) -> bool:
    try:
        _CSV_TYPES[kind][1](value)
    except ValueError:
        return False
    return True


def _file_sizes(path: Path) -> Iterator[tuple[Path, int]]:
    """Files of an out and their bytes. Another process may remove files at the same time: those are left out."""
    folders = ((Path(parent), names) for parent, _, names in os.walk(path))
    inside = (folder / name for folder, names in folders for name in names if name != ".gitignore")
    for file in [path] if path.is_file() else inside:
        with suppress(FileNotFoundError, NotADirectoryError):
            if stat.S_ISREG((state := file.stat()).st_mode):
                yield file, state.st_size


def _common(paths: list[Path]) -> Path:
    return paths[0] if len(paths) == 1 and paths[0].is_dir() else paths[0].parent
