"""The report as one self-contained HTML page: findings, then a part for each recipe: intervals, pictures, tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from paco_core.benchmarks.statistics import Estimate
from paco_core.experiments.reproduction.exam import CAPTIONS, PICTURES, REFERENCE, SHOWN
from paco_core.experiments.reproduction.findings import signed
from paco_core.experiments.reproduction.part import Part
from paco_core.experiments.reproduction.summary import Summary
from paco_core.io.files import read_json
from paco_core.io.pictures import read_image
from paco_core.report import charts
from paco_core.report.charts import Axis
from paco_core.report.pictures import Picture

TEMPLATES = Path(__file__).parent / "templates"
PLOTTED = {
    "gold_consistency": "Gold consistency",
    "gold_following": "Gold prompt following",
    "consistency": "Judge’s consistency",
    "panel_diversity": "Panel diversity",
    "gold_editing": "Edited as asked, all else kept (gold)",
    "gold_reached": "Asked trait reached (gold)",
    "gold_kept": "Other traits kept (gold)",
    "editing": "Editing reward",
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
    """One painter: its pictures of the fixed prompts at one size; or the pictures that were to be edited."""

    painter: str
    pictures: list[Picture]


@dataclass(frozen=True)
class Sheet:
    """What all painters made of the same prompts from the same noise, at one size."""

    size: int
    captions: list[str]
    strips: list[Strip]


@dataclass(frozen=True)
class PartView:
    """A part, and what is drawn of it."""

    part: Part
    plots: list[Plot]
    sheets: list[Sheet]


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


def sheets(part: Part) -> list[Sheet]:
    """By size: the pictures to edit, if any, the bare model's, and each variant's under its first seed."""
    captions: dict[str, str] = read_json(part.before / PICTURES / CAPTIONS)
    firsts = {cell.variant: cell for cell in reversed(part.cells)}
    painters = [(row.variant, firsts[row.variant].folder) for row in part.summary.rows]
    reference = part.before / PICTURES / REFERENCE
    made = []
    for size in part.summary.sizes:
        places = [
            (name, folder / PICTURES / str(size)) for name, folder in [("before training", part.before), *painters]
        ]
        if reference.is_dir():
            places.insert(0, ("picture to edit", reference))
        strips = [
            Strip(
                name,
                [
                    Picture.of(read_image(folder / f"{idx}.png"), f"{name}, {size} px: {text}")
                    for idx, text in captions.items()
                ],
            )
            for name, folder in places
        ]
        made.append(Sheet(size, list(captions.values()), strips))
    return made


def render(name: str, parts: Sequence[Part]) -> str:
    """The page."""
    view: dict[str, Any] = {
        "name": name,
        "parts": [PartView(part, plots(part.summary), sheets(part)) for part in parts],
        "findings": [found for part in parts for found in part.findings],
        "columns": SHOWN,
        "style": (Path(charts.__file__).parent / "templates" / "style.css").read_text(encoding="utf-8"),
    }
    env = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    env.filters["raw"] = Markup  # drawn by our own code, every text from outside escaped by it
    page: str = env.get_template("reproduction.html.j2").render(**view)
    return page
