"""Tables for a terminal: columns of one width, whatever stands in them."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence

GAP = "  "
CUT = "…"


def text_table(
    rows: Sequence[Sequence[str]],
    head: Sequence[str] | None = None,
    *,
    right: Collection[int] = (),
    most: int | None = None,
    indent: str = "",
) -> list[str]:
    """Lines of a table, cells aligned at the left; the last column is not padded.

    Args:
        rows: of equally many cells.
        head: titles of the columns, above a rule; none when None.
        right: numbers of columns that are aligned at the right, as figures are.
        most: characters of a cell; what is beyond is cut.
        indent: stands before each line.
    """
    cells = [[_short(cell, most) for cell in row] for row in ([] if head is None else [head]) + list(rows)]
    if not cells:
        return []
    widths = [max(_width(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = [
        indent + GAP.join(_padded(cell, widths[column], column in right) for column, cell in enumerate(row))
        for row in cells
    ]
    if head is not None:
        lines.insert(1, indent + GAP.join("-" * width for width in widths))
    return [line.rstrip() for line in lines]


def _short(cell: str, most: int | None) -> str:
    return cell if most is None or len(cell) <= most else f"{cell[: most - 1]}{CUT}"


def _padded(cell: str, width: int, right: bool) -> str:
    gap = " " * (width - _width(cell))
    return gap + cell if right else cell + gap


def _width(text: str) -> int:
    """Columns that a text takes: two for a wide character (Chinese, say), none for a mark on another one."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )
