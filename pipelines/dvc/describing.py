"""What the outs of a stage say by themselves: figures, rows and columns, size. Any materialisation can show it.

A stage that DVC restored or left alone says nothing; its outs still do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from pipelines.dvc.project import DvcProject, LockEntry, Stage
from pipelines.dvc.templating import DvcProjectError, read_data

_TABLES = {".parquet", ".jsonl", ".csv"}
_METRICS = {".json", ".yaml", ".yml", ".toml"}
_TABLES_SHOWN = 8


@dataclass(frozen=True)
class TableFacts:
    """Rows and columns (name -> type) of one table."""

    rows: int
    columns: Mapping[str, str]


def describe_outs(project: DvcProject, stage: Stage) -> dict[str, Any]:
    """Metadata of a materialisation from what lies in the workspace.

    Every number of the stage's metrics files, under its dotted name, so that Dagster draws it as a curve over
    materialisations; rows and columns of the main table (``meta.dagster.table``, else the largest), rows of the
    others; files and bytes of the outs.
    """
    metadata: dict[str, Any] = dict(figures(project, stage))
    paths = [project.root / out.path for out in stage.outs if out.kind == "outs" and "://" not in out.path]
    files = sorted(file for path in paths for file in _files(path))
    metadata |= {"dvc/files": len(files), "dvc/bytes": sum(file.stat().st_size for file in files)}
    if paths:
        metadata["dvc/path"] = dg.MetadataValue.path(str(paths[0]))
    tables = {file: facts for file in files if (facts := table_facts(file)) is not None}
    if tables:
        chosen = str((stage.meta.get("dagster") or {}).get("table", ""))
        main = max(tables, key=lambda file: (bool(chosen) and file.match(chosen), tables[file].rows))
        columns = [dg.TableColumn(name, kind) for name, kind in tables[main].columns.items()]
        metadata |= {
            "dagster/row_count": tables[main].rows,
            "dagster/column_schema": dg.MetadataValue.table_schema(dg.TableSchema(columns)),
        }
        if len(tables) > 1:
            named = {file: f"rows/{file.relative_to(_common(paths)).as_posix()}" for file in tables}
            metadata |= {named[file]: tables[file].rows for file in list(tables)[:_TABLES_SHOWN]}
    return metadata


def figures(project: DvcProject, stage: Stage) -> dict[str, int | float]:
    """The numbers of a stage's metrics files by dotted name; nulls, words and unreadable files are left out."""
    found: dict[str, int | float] = {}
    for out in stage.outs:
        path = project.root / out.path
        if out.kind == "metrics" and path.suffix in _METRICS and path.is_file():
            try:
                found |= _numbers(read_data(path))
            except DvcProjectError:
                continue
    return found


def holds_recorded(project: DvcProject, stage: Stage, entry: LockEntry) -> bool:
    """Whether the workspace holds the recorded version: every out is there, and its metrics files are the recorded.

    Large outs are not hashed for this; metrics change with them in practice.
    """
    for out in stage.outs:
        if not (project.root / out.path).exists():
            return False
        if out.kind == "metrics" and project.workspace.md5(out.path) != entry.outs.get(out.path):
            return False
    return True


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
                return TableFacts(rows, {name: type(value).__name__ for name, value in first.items()})
            case ".csv":
                with file.open(encoding="utf-8") as stream:
                    header = next(stream, "").strip()
                    return TableFacts(sum(1 for _ in stream), dict.fromkeys(header.split(","), "text"))
    except (OSError, ValueError, AttributeError):
        return None
    return None


def _parquet(file: Path) -> TableFacts | None:
    try:
        from pyarrow import parquet
    except ImportError:  # a project without Parquet files needs no pyarrow
        return None
    found = parquet.ParquetFile(file)
    return TableFacts(found.metadata.num_rows, {f.name: str(f.type) for f in found.schema_arrow})


def _files(path: Path) -> Iterable[Path]:
    if path.is_file():
        return [path]
    return (file for file in path.rglob("*") if file.is_file() and file.name != ".gitignore")


def _common(paths: list[Path]) -> Path:
    return paths[0] if len(paths) == 1 and paths[0].is_dir() else paths[0].parent


def _numbers(tree: Mapping[str, Any], prefix: str = "") -> dict[str, int | float]:
    found: dict[str, int | float] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= _numbers(value, f"{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            found[name] = value
    return found
