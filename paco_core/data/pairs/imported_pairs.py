"""Imported pairs: pairs of another data set, from a folder that ``paco dataset import`` writes."""

from __future__ import annotations

import math
import re
import shlex
import shutil
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from paco_core.config.params import EditQuestion
from paco_core.data.pairs.answers import NO, YES, validation_error
from paco_core.data.pairs.leakage import picture_md5s
from paco_core.data.pairs.pairs import CHARACTER, COLUMNS, QUESTION, Pair
from paco_core.data.records.records import parse_ref
from paco_core.data.tables import parse_text
from paco_core.io.files import DataError, checked_name, read_table
from paco_core.io.shards import GRID_COLUMNS, INDEX, TAR, ShardReader
from paco_core.io.text import not_blank, validate_marks

PICTURES, SHARD = "pictures", "imported"
HELD_OUT = re.compile(r"(^|_)(test|validation|valid|val|eval|dev)$")  # for example consistency_reward_cot_test


@dataclass
class ImportedPairs:
    """Imported pairs, and the shard with their pictures."""

    pairs: list[Pair] = field(default_factory=list)
    held_out: list[Pair] = field(default_factory=list)  # validation pairs: from tables that their publisher holds out
    md5s: dict[str, str] = field(default_factory=dict)
    source: Path | None = None

    def write(self, out: Path) -> None:
        """Copy the pictures below ``out``, if there are any."""
        if self.source is not None:
            (out / SHARD).mkdir(parents=True)
            for name in (TAR, INDEX):
                shutil.copyfile(self.source / name, out / SHARD / name)


def tables_of(folder: Path) -> list[Path]:
    """The tables of pairs in a folder."""
    return [file for file in sorted(folder.glob("*.parquet")) if file.name != "benchmark.parquet"]


def count_to_train_on(folder: Path) -> int:
    """The number of pairs of a folder that are not held out, from the metadata of its tables. Skips damaged tables."""
    count = 0
    for file in tables_of(folder):
        if not HELD_OUT.search(file.stem):
            with suppress(OSError, pa.ArrowInvalid):
                count += pq.read_metadata(file).num_rows
    return count


def imported_pairs(folder: Path | None) -> ImportedPairs:
    """Read all pairs of a folder. Pairs in tables with names like test or validation are held out.

    Raises:
        DataError: if there are no pairs, a table is damaged, or a pair has an invalid or repeated id, a missing
            picture, or a label other than Yes and No. The message contains the file and the row.
    """
    if folder is None:
        return ImportedPairs()
    tables = tables_of(folder)
    if not tables:
        raise DataError(
            f"{folder} contains no table of pairs; "
            f"run `paco dataset import paco_dataset FOLDER {shlex.quote(str(folder))}` to create one"
        )
    imported = ImportedPairs(source=folder / PICTURES)
    imported.md5s = picture_md5s(ShardReader([folder / PICTURES], (*GRID_COLUMNS, "md5")).index)
    pair_ids: set[str] = set()
    for file in tables:
        remedy = f"remove {folder} and import it again with `paco dataset import`"
        table = read_table(file, require=COLUMNS, remedy=remedy)
        for number, row in enumerate(table.reindex(columns=[*COLUMNS, QUESTION, CHARACTER]).to_dict("records")):
            texts: dict[str, Any] = dict.fromkeys(map(str, row))
            try:
                texts |= {
                    str(name): None if _absent(value) else parse_text(value, str(name)) for name, value in row.items()
                }
                _check(texts, imported.md5s.keys())
                if texts["pair_id"].lower() in pair_ids:
                    raise DataError("its pair_id already occurs in an earlier row or table")
            except DataError as error:
                raise DataError(f"{file}: row {number}, pair {texts['pair_id']}: {error}; {remedy}") from None
            pair_ids.add(texts["pair_id"].lower())
            # An imported pair without a theme uses the question without a theme.
            pair = Pair(**texts | {"theme": texts["theme"] or ""})
            (imported.held_out if HELD_OUT.search(file.stem) else imported.pairs).append(pair)
    return imported


def _check(texts: dict[str, Any], pictures: Set[str]) -> None:
    for name in ("pair_id", "prompt_id"):
        checked_name(texts[name])
    for name in ("first", "second"):
        if parse_ref(str(texts[name]))[0] not in pictures:
            raise DataError(f"its {name} picture {texts[name]} is not in {PICTURES}/{INDEX}")
    if texts["label"] not in (YES, NO):
        raise DataError(f"label {texts['label']!r} is neither Yes nor No")
    if texts["question"] not in (None, *get_args(EditQuestion), CHARACTER):
        raise DataError(
            f"question {texts['question']!r} is not one of {', '.join((*get_args(EditQuestion), CHARACTER))}"
        )
    if (texts["question"] == CHARACTER) != (texts["character"] is not None):
        raise DataError(f"a pair with the question {CHARACTER!r}, and only such a pair, needs a character")
    if texts["question"] not in (None, CHARACTER) and texts["instruction"] is None:
        raise DataError(f"question {texts['question']!r} is about an edit, but the pair has no instruction")
    for name in ("theme", "instruction", "character"):
        if texts[name]:
            try:
                validate_marks(not_blank(texts[name]))
            except ValueError as error:
                raise DataError(f"its {name} {error}") from None
    if texts["answer"] is not None and (cause := validation_error(texts["answer"], texts["label"])):
        raise DataError(f"its answer {texts['answer'][:40]!r} does not fit its label {texts['label']} ({cause})")


def _absent(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
