"""Aligned tables for a terminal."""

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
    """Lines of a table with cells aligned at the left. The last column is not padded.

    Args:
        rows: rows with equal numbers of cells.
        head: titles of the columns, above a line; None for no titles.
        right: indices of columns that are aligned at the right.
        most: maximum characters of a cell; longer cells are cut.
        indent: text at the beginning of each line.
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
    """Terminal columns of a text: two for a wide character (for example Chinese), none for a combining mark."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )
