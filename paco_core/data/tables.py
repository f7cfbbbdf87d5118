"""Tables from outside: CSV and TSV, JSON Lines, Parquet. No type is guessed: a text stays the text that stands there.

- CSV and TSV: every cell is a text; an empty cell is no value (these formats cannot tell the two apart).
- JSON Lines: values as JSON writes them; an absent key and ``null`` are no value.
- Parquet: values as they are stored; null is no value.

Where a text is expected, an integer is read as its digits (the ids ``17`` and ``"17"`` are one); any other value is an
error. :class:`ReadTable` is a table that is written back with further columns, in its own format: everything else stays
as it was. :func:`read_rows` gives records one by one, and leaves out those that cannot be read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from paco_core.data.separated import SEPARATORS, Cell, Separated, read_separated
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError, read_json, read_jsonl
from paco_core.io.rejected import Rejected
from paco_core.io.text import BOM, decoded

LINES = (".jsonl", ".ndjson")
FORMATS = (".parquet", ".csv", ".jsonl", ".tsv", ".ndjson")


class ReadTable(Protocol):
    """A table that is read whole."""

    @property
    def columns(self) -> Sequence[str]: ...

    def __len__(self) -> int: ...

    def values(self, column: str) -> list[Any]:
        """The values of one column, as the format has them; None where there is no value."""

    def place(self, row: int) -> str:
        """Where a row stands, for a message: ``FILE:LINE``, or in Parquet ``FILE: row NUMBER``, as pandas counts."""

    def write(self, target: Path, added: Mapping[str, Sequence[Cell]]) -> None:
        """Write it with further columns, atomically; a column that is there already is replaced."""


def open_table(file: Path, require: Sequence[str]) -> ReadTable:
    """Read a table.

    Raises:
        DataError: naming the file, when it is missing or of another format, lacks a column of ``require`` or has it
            twice, or is damaged.
    """
    if not file.is_file():
        raise DataError(f"{file}: {'a folder, expected a file' if file.is_dir() else 'no such file'}")
    suffix = file.suffix.lower()
    table: ReadTable
    if suffix in SEPARATORS:
        table = _Separated(file, require)
    elif suffix in LINES:
        table = _Lines(file)
    elif suffix == ".parquet":
        table = _Parquet(file)
    else:
        raise _unknown(file)
    if missing := [name for name in require if name not in table.columns]:
        raise DataError(f"{file}: column {', '.join(missing)} is missing; it has {', '.join(table.columns)}")
    return table


def text_column(table: ReadTable, column: str, file: Path) -> list[str | None]:
    """One column of texts.

    Raises:
        DataError: naming the place of a value that is no text, or a column that is there twice.
    """
    if list(table.columns).count(column) > 1:
        raise DataError(f"{file}: column {column} is there twice; remove or rename one")
    column_texts = []
    for row, value in enumerate(table.values(column)):
        try:
            column_texts.append(None if value is None else parse_text(value, column))
        except DataError as error:
            raise DataError(f"{table.place(row)}: {error}") from None
    return column_texts


def parse_text(value: object, name: str) -> str:
    """A value that is to be a text; an integer becomes its digits.

    Raises:
        DataError: naming what the value is to be, when it is anything else.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise DataError(f"{name} is {_short(value)}, expected a string")


def parse_number(value: object, name: str) -> float:
    """A finite number, or a text that spells one with a decimal point.

    Raises:
        DataError: naming what the value is to be, when it is anything else.
    """
    parsed = math.nan
    if isinstance(value, int | float | str) and not isinstance(value, bool) and "_" not in str(value):
        with suppress(ValueError, OverflowError):
            parsed = float(value)
    if not math.isfinite(parsed):
        raise DataError(f"{name} {_short(value)} is not a finite number")
    return parsed


def parse_numbers(value: object) -> object:
    """The list of numbers that a cell of CSV spells, as JSON or with blanks, commas or semicolons between them.

    Numbers in a list may be spelled as texts, too (``["2", "0"]``). What is no such list is returned as it is.
    """
    if isinstance(value, str):
        parts: list[Any] = re.split(r"[\s,;]+", value.strip().removeprefix("[").removesuffix("]").strip())
    elif isinstance(value, list):
        parts = value
    else:
        return value
    try:
        return [json.loads(part) if isinstance(part, str) else part for part in parts]
    except ValueError:
        return value


def read_rows(file: Path, rejected: Rejected, require: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, record) of a CSV, TSV, JSON Lines or Parquet file, or of one JSON list.

    Keys without a value may be absent. Each record that cannot be read goes to ``rejected``.

    Args:
        require: columns that the records must have, where all have the same.

    Raises:
        DataError: when the file is missing, of another format or damaged, or lacks a column of ``require``.
    """
    suffix = file.suffix.lower()
    if suffix in SEPARATORS:
        return _separated_rows(file, rejected, require)
    if suffix == ".parquet":
        table = _Parquet(file)
        return ((table.place(number), row) for number, row in enumerate(table.rows(require)))
    if suffix == ".json" and _is_list(file):
        return _listed_rows(file, rejected)
    if suffix in (*LINES, ".json"):
        return ((f"{file}:{line}", row) for line, row in read_jsonl(file, rejected.lines_of(file)))
    raise _unknown(file, ".json")


def _separated_rows(file: Path, rejected: Rejected, require: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    table = read_separated(file, require)
    names = table.columns
    if repeated := {name for name in names if names.count(name) > 1}:
        raise DataError(f"{file}: column {min(repeated)} is there twice; remove or rename one")
    for record in table.records:
        place = f"{file}:{record.line}"
        if validation_error := table.validation_error(record):
            rejected.add(place, f"line: {validation_error}")
        else:
            yield place, {name: value for name, value in zip(names, record.values, strict=True) if value}


def _listed_rows(file: Path, rejected: Rejected) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, row in enumerate(read_json(file)):
        if isinstance(row, dict):
            yield f"{file}[{number}]", row
        else:
            rejected.add(f"{file}[{number}]", f"record: expected a JSON object, found {type(row).__name__}")


def _unknown(file: Path, *suffixes: str) -> DataError:
    return DataError(f"{file}: unknown format {file.suffix!r}; expected {', '.join((*FORMATS, *suffixes))}")


def _is_list(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        while head := stream.read(64):
            if head := head.lstrip(b"\xef\xbb\xbf \t\r\n"):
                return head.startswith(b"[")
    return False


def _short(value: object) -> str:
    spelled = repr(value)
    return spelled if len(spelled) <= 80 else f"{spelled[:60]}... ({type(value).__name__})"


class _Separated:
    """CSV or TSV."""

    def __init__(self, file: Path, require: Sequence[str]) -> None:
        self._file = file
        self._table: Separated = read_separated(file, require)
        self.columns = self._table.columns
        for record in self._table.records:
            if validation_error := self._table.validation_error(record):
                raise DataError(f"{file}:{record.line}: {validation_error}")

    def __len__(self) -> int:
        return len(self._table.records)

    def values(self, column: str) -> list[Any]:
        place = self.columns.index(column)
        return [record.values[place] or None for record in self._table.records]

    def place(self, row: int) -> str:
        return f"{self._file}:{self._table.records[row].line}"

    def write(self, target: Path, added: Mapping[str, Sequence[Cell]]) -> None:
        with atomic(target) as part:
            part.write_bytes(self._table.with_columns(added).encode())


class _Lines:
    """JSON Lines; a line is written back as it is, with further keys at its end."""

    def __init__(self, file: Path) -> None:
        data = file.read_bytes()
        numbered = list(read_jsonl(file))
        self._file, self._numbers = file, [number for number, _ in numbered]
        self._rows = [row for _, row in numbered]
        self._mark = "\ufeff" if data.startswith(BOM) else ""
        self._lines = [line for line in re.findall(r"[^\n]*\n|[^\n]+", decoded(data)) if line.strip()]
        self.columns = list(dict.fromkeys(name for row in self._rows for name in row))

    def __len__(self) -> int:
        return len(self._rows)

    def values(self, column: str) -> list[Any]:
        return [row.get(column) for row in self._rows]

    def place(self, row: int) -> str:
        return f"{self._file}:{self._numbers[row]}"

    def write(self, target: Path, added: Mapping[str, Sequence[Cell]]) -> None:
        with atomic(target) as part, part.open("w", encoding="utf-8", newline="") as out:
            out.write(self._mark)
            for line, row, *values in zip(self._lines, self._rows, *added.values(), strict=True):
                out.write(_with_keys(line, row, dict(zip(added, values, strict=True))))


def _with_keys(line: str, row: Mapping[str, Any], added: Mapping[str, Cell]) -> str:
    body = line.rstrip()
    added = {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in added.items()}
    if added.keys() & row.keys():
        body = json.dumps({**row, **added}, ensure_ascii=False)
    else:
        body = f"{body[:-1].rstrip()}, {json.dumps(added, ensure_ascii=False)[1:]}"
    return body + line[len(line.rstrip()) :]


class _Parquet:
    """Parquet; columns keep their types, and what the file says of them."""

    def __init__(self, file: Path) -> None:
        import pyarrow
        from pyarrow import parquet

        self._file = file
        try:
            self._table = parquet.ParquetFile(file).read()
        except (OSError, pyarrow.ArrowException) as error:
            cause = " ".join(str(error).split())[:300] or "it is empty"
            raise DataError(f"{file}: not readable as parquet ({cause})") from None
        self.columns = list(self._table.column_names)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def values(self, column: str) -> list[Any]:
        return list(self._table.column(column).to_pylist())

    def place(self, row: int) -> str:
        return f"{self._file}: row {row}"

    def rows(self, require: Sequence[str]) -> Iterator[dict[str, Any]]:
        if missing := [name for name in require if name not in self.columns]:
            raise DataError(f"{self._file}: column {missing[0]} is missing; it has {', '.join(self.columns)}")
        for batch in self._table.to_batches():
            yield from ({k: v for k, v in row.items() if v is not None} for row in batch.to_pylist())

    def write(self, target: Path, added: Mapping[str, Sequence[Cell]]) -> None:
        import pyarrow
        from pyarrow import parquet

        table = self._table
        for name, values in added.items():
            kind = pyarrow.float64() if any(isinstance(value, float) for value in values) else pyarrow.string()
            column = pyarrow.array(values, type=kind, from_pandas=True)  # NaN is null
            if name in table.column_names:
                table = table.set_column(table.column_names.index(name), name, column)
            else:
                table = table.append_column(name, column)
        with atomic(target) as part:
            parquet.write_table(table, part)
