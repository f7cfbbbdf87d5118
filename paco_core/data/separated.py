"""CSV and TSV, each cell kept as it is spelled, so that a table is written back byte for byte where nothing changed.

(Python's ``csv`` and pandas give the values only; which cells were quoted, and how lines ended, is lost.)

A text that a spreadsheet would run as a formula is written with an apostrophe before it, as spreadsheets do
themselves, and read without it. Numbers stay numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dvc_project.errors import DataError
from paco_core.io.text import BOM, decoded

SEPARATORS = {".csv": ",;\t", ".tsv": "\t"}
_SEPARATOR_LINE = re.compile(r"sep=(.)(\r\n|\n|\r)")  # Excel's own first line
_FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # the last four: full-width = + - @
_NUMBER = re.compile(r"[+-](\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?%?")

Cell = str | float | None


def guarded(text: str) -> str:
    """A text that no spreadsheet runs; :func:`unguarded` gives the text again, whatever it is."""
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def unguarded(text: str) -> str:
    """A cell's text without the apostrophe of a guarded one."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


@dataclass(frozen=True)
class SeparatedRecord:
    """One record: its line (from 1), its cells as they are spelled, and how it ends."""

    line: int
    cells: Sequence[str]
    end: str

    @property
    def values(self) -> list[str]:
        """The texts of its cells."""
        return [unguarded(_plain(cell)) for cell in self.cells]


@dataclass(frozen=True)
class Separated:
    """A file of records, the first of which names the columns."""

    before: str  # a byte order mark, and Excel's line that names the separator
    separator: str
    header: SeparatedRecord
    records: Sequence[SeparatedRecord]

    @property
    def columns(self) -> list[str]:
        return self.header.values

    def validation_error(self, record: SeparatedRecord) -> str | None:
        """What is wrong with a record, or None."""
        num_cells, expected = len(record.cells), len(self.header.cells)
        return None if num_cells == expected else f"{num_cells} cells, the header has {expected}"

    def with_columns(self, added: Mapping[str, Sequence[Cell]]) -> str:
        """The whole text with further columns at the end; one that is there already is replaced where it stands.

        All other cells stay as they are spelled, but for formulas, which are guarded.
        """
        columns = self.columns
        places = {name: columns.index(name) if name in columns else -1 for name in added}
        lines = [self._line(self.header, places, dict(zip(added, added, strict=True)))]
        for record, *values in zip(self.records, *added.values(), strict=True):
            lines.append(self._line(record, places, dict(zip(added, values, strict=True))))
        return self.before + "".join(lines)

    def _line(self, record: SeparatedRecord, places: Mapping[str, int], values: Mapping[str, Cell]) -> str:
        cells = [self._safe(cell) for cell in record.cells]
        for name, place in places.items():
            text = self._spelled(values[name])
            if place < 0:
                cells.append(text)
            else:
                cells[place] = text
        return self.separator.join(cells) + record.end

    def _safe(self, cell: str) -> str:
        text = _plain(cell)
        return cell if text.startswith("'") or guarded(text) == text else self._spelled(text)

    def _spelled(self, value: Cell) -> str:
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return ""
        text = guarded(value) if isinstance(value, str) else repr(value)
        quoted = any(mark in text for mark in (self.separator, '"', "\r", "\n"))
        return '"' + text.replace('"', '""') + '"' if quoted else text


def read_separated(file: Path, require: Sequence[str] = ()) -> Separated:
    """Read a CSV or TSV file: RFC 4180, UTF-8. Lines without any text are left out.

    The separator of a CSV file is the first of comma, semicolon (as Excel writes where the comma is decimal) and tab by
    which the header has the columns ``require``, or several columns where none is required; or the one that a first
    line ``sep=;`` names. A header that no separator divides is one column.

    Raises:
        DataError: naming file and line, when it is no such file, or lacks a column.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: {error.strerror.lower() if error.strerror else error}") from None
    try:
        text = decoded(data)
    except DataError as error:
        raise DataError(f"{file}: {error}") from None
    mark = "\ufeff" if data.startswith(BOM) else ""
    separator_line = _SEPARATOR_LINE.match(text)
    missing, header = list(require), list[str]()
    undivided: Separated | None = None
    for separator in separator_line[1] if separator_line else SEPARATORS[file.suffix.lower()]:
        start = separator_line.end() if separator_line else 0
        records = _records(file, text, separator, start, 1 + bool(separator_line))
        first = next(records, None)
        if first is None:
            raise DataError(f"{file}: is empty, expected a header with {', '.join(require) or 'the columns'}")
        lost = [name for name in require if name not in first.values]
        if not lost and (require or len(first.cells) > 1):
            return Separated(mark + text[:start], separator, first, list(records))
        if not lost and undivided is None:
            undivided = Separated(mark + text[:start], separator, first, list(records))
        if len(first.cells) > len(header):
            missing, header = lost, first.values
    if undivided is not None:
        return undivided
    raise DataError(f"{file}: column {', '.join(missing)} is missing; it has {', '.join(header)}")


def _records(file: Path, text: str, separator: str, start: int, line: int) -> Iterator[SeparatedRecord]:
    cut = re.escape(separator)
    cell = re.compile(rf'("[^"]*+(?:""[^"]*+)*+"|(?!")[^{cut}\r\n]*+)({cut}|\r\n|\n|\r|\Z)')
    cells, first = list[str](), line
    while start < len(text):
        match = cell.match(text, start)
        if match is None:
            raise DataError(f"{file}:{first}: a quoted cell is not closed, or text follows its closing quote")
        cells.append(match[1])
        start, line = match.end(), line + (match[0].count("\n") or match[0].count("\r"))
        if match[2] != separator:
            if cells != [""]:
                yield SeparatedRecord(first, cells, match[2])
            cells, first = [], line
    if cells:  # the file ends behind a separator
        yield SeparatedRecord(first, [*cells, ""], "")


def _plain(cell: str) -> str:
    return cell[1:-1].replace('""', '"') if cell.startswith('"') else cell
