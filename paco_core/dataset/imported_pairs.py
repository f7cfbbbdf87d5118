"""Pairs of another data set, from a folder in the project's own layout (``paco dataset import`` writes one)."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paco_core.dataset.leakage import picture_md5s
from paco_core.dataset.pairs import COLUMNS, NO, QUESTION, YES, Pair
from paco_core.files import DataError, read_table
from paco_core.shards import ShardReader

PICTURES, SHARD = "pictures", "imported"


@dataclass
class ImportedPairs:
    """Their pairs, and the shard that holds their pictures."""

    pairs: list[Pair] = field(default_factory=list)
    md5s: dict[str, str] = field(default_factory=dict)
    source: Path | None = None

    def write(self, out: Path) -> None:
        """Copy the pictures below ``out``; nothing where there are none."""
        if self.source is not None:
            shutil.copytree(self.source, out / SHARD)


def imported_pairs(folder: Path | None) -> ImportedPairs:
    """All pairs of a folder, whatever its split was: they are split anew, with the project's own.

    Raises:
        DataError: when there are no pairs, a table is damaged, a column is missing, or a label is neither Yes nor No.
    """
    if folder is None:
        return ImportedPairs()
    tables = [file for file in sorted(folder.glob("*.parquet")) if file.name != "benchmark.parquet"]
    if not tables:
        raise DataError(
            f"{folder}: holds no table of pairs; `paco dataset import paco_dataset FOLDER {folder}` makes one"
        )
    found = ImportedPairs(source=folder / PICTURES)
    found.md5s = picture_md5s(ShardReader([folder / PICTURES]).index)
    for file in tables:
        table = read_table(file, remedy=f"remove {folder} and import it again with `paco dataset import`")
        if missing := [name for name in COLUMNS if name not in table]:
            raise DataError(f"{file}: column {missing[0]!r} is missing")
        for row in table.reindex(columns=[*COLUMNS, QUESTION]).to_dict("records"):
            if row["label"] not in (YES, NO):
                raise DataError(f"{file}: pair {row['pair_id']}: label {row['label']!r} is neither Yes nor No")
            texts: dict[str, Any] = {str(n): v if isinstance(v, str) else None for n, v in row.items()}
            found.pairs.append(Pair(**texts))
    return found
