"""Results as tables that people read: Markdown for a page of the documentation, HTML for a browser."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.benchmarks.statistics import Estimate
from paco_core.io.files import DataError, read_json, write_json, write_text
from paco_core.io.text_table import text_table

if TYPE_CHECKING:
    import pandas as pd

TABLES = "tables.json"
INTERVAL = re.compile(r"(\S+) (\([^)]* to [^)]*\).*)")
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#1b1b1f;"
    "background:#fff}table{border-collapse:collapse;margin:1rem 0}caption{text-align:left;font-weight:600;"
    "padding:.4rem 0}small{color:#777;white-space:nowrap}"
    "th,td{padding:.3rem .8rem;border-bottom:1px solid #ddd;text-align:right}"
    "th:first-child,td:first-child{text-align:left}.note{color:#555}div{overflow-x:auto}"
    "@media(prefers-color-scheme:dark){body{background:#17171a;color:#e8e8ea}th,td{border-color:#3a3a40}"
    ".note{color:#a8a8b0}}"
)


@dataclass(frozen=True)
class ResultTable:
    """A title, a head, rows of cells, and notes below; a cell is text that is shown as it is.

    ``detail``: not one of the paper's tables, but what we add to them.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = field(default_factory=list)
    detail: bool = False

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", _row(self.head), "|---" + "|---:" * (len(self.head) - 1) + "|"]
        lines += [_row(row) for row in self.rows]
        return "\n".join([*lines, *(line for note in self.notes for line in ("", note))]) + "\n"

    def text(self) -> str:
        """The table for a terminal."""
        rows = [[" ".join(cell.split()) for cell in row] for row in self.rows]
        lines = [self.title, "", *text_table(rows, self.head, right=range(1, len(self.head)))]
        return "\n".join([*lines, *(line for note in self.notes for line in ("", note))]) + "\n"

    def html(self) -> str:
        head = "".join(f"<th scope=col>{escape(cell)}</th>" for cell in self.head)
        rows = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>\n" for row in self.rows)
        notes = "".join(f'<p class="note">{escape(note)}</p>\n' for note in self.notes)
        table = f"<table><caption>{escape(self.title)}</caption><tr>{head}</tr>\n{rows}</table>"
        return f"<div>{table}</div>\n{notes}"


def _cell(text: str) -> str:
    """A figure's interval goes below it."""
    if match := INTERVAL.fullmatch(text):
        return f"<td>{escape(match[1])}<br><small>{escape(match[2])}</small></td>"
    return f"<td>{escape(text)}</td>"


def with_published(measured: ResultTable, published: ResultTable, *, same_queries: bool) -> list[ResultTable]:
    """Measured and published rows: in one table only if both were asked in the same words."""
    if not same_queries:
        return [measured, published]
    blank = [""] * (len(measured.head) - len(published.head))
    rows = [*measured.rows, *([*row, *blank] for row in published.rows)]
    return [ResultTable(measured.title, measured.head, rows, [*measured.notes, *published.notes])]


def difference_tables(
    comparisons: Mapping[str, Mapping[str, Estimate]], columns: Mapping[str, str], notes: Sequence[str] = ()
) -> list[ResultTable]:
    """A table of paired differences, or none.

    Args:
        comparisons: estimates by ``"first - second"``, then by name.
        columns: head of each name that is shown.
    """
    rows = [[pair, *(signed(row[name]) for name in columns)] for pair, row in comparisons.items()]
    return [ResultTable("Paired differences", ["models", *columns.values()], rows, notes, detail=True)] if rows else []


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def number(value: float | None, digits: int = 3) -> str:
    """A figure, or a dash where it is not defined."""
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def interval(value: Estimate) -> str:
    """A mean with its interval: ``0.435 (0.401 to 0.467)``; cases without a value are counted: ``0.435, 2 missing``."""
    ends = "" if math.isnan(value.low) else f" ({number(value.low)} to {number(value.high)})"
    return f"{number(value.mean)}{ends}{_missing(value)}"


def signed(value: Estimate) -> str:
    """A change with its interval: ``+0.035 (+0.001 to +0.067)``, with missing cases as in :func:`interval`."""
    if math.isnan(value.mean):
        return number(value.mean)
    ends = "" if math.isnan(value.low) else f" ({value.low:+.3f} to {value.high:+.3f})"
    return f"{value.mean:+.3f}{ends}{_missing(value)}"


def _missing(value: Estimate) -> str:
    return f", {value.missing} missing" if value.count and value.missing else ""


def write_result_tables(folder: Path, title: str, tables: Sequence[ResultTable], name: str = "results") -> None:
    """Write ``NAME.md``, ``NAME.html`` (self-contained) and ``tables.json``, for :func:`read_tables`, to ``folder``."""
    write_text(folder / f"{name}.md", f"# {title}\n\n" + "\n".join(table.markdown() for table in tables))
    write_json(folder / TABLES, [asdict(table) for table in tables])
    write_page(folder / f"{name}.html", title, "\n".join(table.html() for table in tables))


def read_tables(folder: Path) -> list[ResultTable]:
    """What :func:`write_result_tables` wrote to a benchmark's folder.

    Raises:
        DataError: when the file is missing or damaged.
    """
    path = folder / TABLES
    try:
        return [ResultTable(**table) for table in read_json(path)]
    except TypeError as error:
        raise DataError(f"{path}: not what a benchmark writes ({error}); run `dvc repro {folder.name}`") from None


def read_method_means(results: Path) -> pd.DataFrame:
    """One row per method of a benchmark of sets, from its ``results.json``: label and means."""
    import pandas as pd  # noqa: PLC0415 - half a second that most users of a table need not spend

    result = read_json(results)
    rows = [
        {"method": label, **{name: value["mean"] for name, value in result["figures"][method].items()}}
        for method, label in result["methods"].items()
    ]
    return pd.DataFrame(rows)


def write_page(path: Path, title: str, body: str) -> None:
    """Write a self-contained HTML page with a heading."""
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{STYLE}</style>"
    write_text(path, f"{head}\n<h1>{escape(title)}</h1>\n{body}</html>\n")
