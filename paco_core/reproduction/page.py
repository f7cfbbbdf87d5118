"""The report as one self-contained HTML page: findings, intervals side by side, pictures, tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paco_core.benchmarks.statistics import Estimate
from paco_core.benchmarks.tables import Table
from paco_core.report import charts
from paco_core.report.charts import Axis
from paco_core.report.pictures import Picture, read_png
from paco_core.reproduction.cells import Kept
from paco_core.reproduction.exam import PICTURES
from paco_core.reproduction.findings import Finding, signed
from paco_core.reproduction.summary import Summary

TEMPLATES = Path(__file__).parent / "templates"
PLOTTED = {
    "gold_consistency": "Gold consistency",
    "gold_following": "Gold prompt following",
    "consistency": "Judge’s consistency",
    "panel_diversity": "Panel diversity",
}


@dataclass(frozen=True)
class PlotRow:
    """One variant in a plot: its title in words, a dot and interval for each size."""

    variant: str
    marks: list[tuple[str, str]]  # the drawing, the figures as text


@dataclass(frozen=True)
class Plot:
    """Changes of one measure, sizes side by side on one axis."""

    name: str
    rows: list[PlotRow]
    axis: str


@dataclass(frozen=True)
class Strip:
    """One painter: its pictures of the fixed prompts at one size."""

    variant: str
    pictures: list[Picture]


def plots(summary: Summary) -> list[Plot]:
    """Change after training, by variant and size."""
    made = []
    for measure, name in PLOTTED.items():
        if measure not in summary.measures:
            continue
        found = {
            (row.variant, size): row.measures[size][measure].change for row in summary.rows for size in summary.sizes
        }
        ends = [end for e in found.values() for end in (e.mean, e.low, e.high)]
        axis = Axis.over(ends, include=(0.0,))
        rows = [
            PlotRow(r.variant, [_mark(axis, found[r.variant, size]) for size in summary.sizes]) for r in summary.rows
        ]
        made.append(Plot(name, rows, charts.axis_labels(axis)))
    return made


def _mark(axis: Axis, found: Estimate) -> tuple[str, str]:
    return charts.whisker(axis, found.mean, found.low, found.high, "s1", guide=0.0), signed(found)


def strips(summary: Summary, cells: Sequence[Kept], before: Path) -> dict[int, list[Strip]]:
    """By size, the bare model's pictures and each variant's under its first seed: equal prompts, equal noise."""
    found: dict[int, list[Strip]] = {}
    firsts = {cell.variant: cell for cell in reversed(cells)}
    painters = [("before training", before), *((row.variant, firsts[row.variant].folder) for row in summary.rows)]
    for size in summary.sizes:
        for variant, folder in painters:
            files = sorted((folder / PICTURES / str(size)).glob("*.png"))
            shown = [Picture.of(read_png(f), f"{variant}, {size} px, prompt {f.stem}") for f in files]
            found.setdefault(size, []).append(Strip(variant, shown))
    return found


def render(
    summary: Summary, said: Sequence[Finding], tables: Sequence[Table], cells: Sequence[Kept], before: Path
) -> str:
    """The page.

    Args:
        before: folder of the bare model's examination.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    from paco_core.reproduction.report import basis

    view: dict[str, Any] = {
        "summary": summary,
        "basis": basis(summary),
        "findings": said,
        "plots": plots(summary),
        "strips": strips(summary, cells, before),
        "tables": tables,
        "style": (Path(charts.__file__).parent / "templates" / "style.css").read_text(),
    }
    env = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    env.filters["raw"] = Markup  # drawn by our own code, every text from outside escaped by it
    page: str = env.get_template("reproduction.html.j2").render(**view)
    return page
