"""A comparison as one self-contained HTML page: pictures of the same step side by side, curves, figures, settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.experiments.comparison.collect import ComparedRun, differing
from paco_core.experiments.comparison.table import figures
from paco_core.report import charts, html

if TYPE_CHECKING:
    from PIL.Image import Image

TEMPLATE = Path(__file__).parent / "templates" / "comparison.html.j2"
WIDEST_PX = 640  # wider pictures are scaled down: the full ones are in MLflow
STYLES = ("s1", "s2", "s3", "s4")

GetPicture = Callable[[ComparedRun, str, int], "Image"]


@dataclass(frozen=True)
class Column:
    """A run at the head of a column, with the sign of its lines."""

    number: int
    run: ComparedRun
    style: str
    marker: str


@dataclass(frozen=True)
class PictureRow:
    """One moment of training: a picture of each run, None where a run has none of it."""

    moment: str
    cells: list[html.Picture | None]


def columns(runs: Sequence[ComparedRun]) -> list[Column]:
    styles = [STYLES[n % len(STYLES)] for n in range(len(runs))]
    return [Column(n, run, s, charts.legend_marker(s)) for n, (run, s) in enumerate(zip(runs, styles, strict=True))]


def axis(runs: Sequence[ComparedRun]) -> str:
    """The common axis: samples seen where all runs that have curves log it, else optimiser steps."""
    drawn = [run for run in runs if run.curves]
    return "samples seen" if drawn and all(run.samples for run in drawn) else "step"


def curve_charts(heads: Sequence[Column]) -> list[dict[str, str]]:
    """One chart a metric that any run has as a curve."""
    runs = [head.run for head in heads]
    x_label = axis(runs)
    names = sorted({name for run in runs for name in run.curves if not name.startswith("seconds/")})
    made = []
    for name in names:
        lines = []
        for head in heads:
            points = head.run.curves.get(name, ())
            xs = [p.samples if x_label == "samples seen" else float(p.step) for p in points]
            kept = [(x, p.value) for x, p in zip(xs, points, strict=True) if x is not None]
            label = f"[{head.number}]"
            lines.append(
                charts.Line(label, [x for x, _ in kept], [y for _, y in kept], head.style, dots=len(kept) < 12)
            )
        made.append({"title": name, "svg": charts.line_chart(lines, title=name, x_label=x_label)})
    return made


def picture_rows(runs: Sequence[ComparedRun], get: GetPicture) -> dict[str, list[PictureRow]]:
    """By picture series, a row for each moment at which any run has one."""
    x_label = axis(runs)

    def moment(run: ComparedRun, step: int) -> float:
        return run.samples.get(step, float(step)) if x_label == "samples seen" else float(step)

    found: dict[str, list[PictureRow]] = {}
    for key in sorted({key for run in runs for key, _ in run.pictures}):
        at = [{moment(run, step): step for name, step in run.pictures if name == key} for run in runs]
        rows = []
        for when in sorted({place for places in at for place in places}):
            cells = [
                _small(get(run, key, places[when]), f"[{n}] {key} at {when:g} {x_label}") if when in places else None
                for n, (run, places) in enumerate(zip(runs, at, strict=True))
            ]
            rows.append(PictureRow(f"{when:g} {x_label}", cells))
        found[key] = rows
    return found


def _small(image: Image, alt: str) -> html.Picture:
    if image.width > WIDEST_PX:
        image = image.resize((WIDEST_PX, max(1, image.height * WIDEST_PX // image.width)))
    return html.Picture.from_image(image, alt)


def render(runs: Sequence[ComparedRun], get: GetPicture, made: str) -> str:
    """The page."""
    heads = columns(runs)
    view: dict[str, Any] = {
        "made": made,
        "heads": heads,
        "pictures": picture_rows(runs, get),
        "charts": curve_charts(heads),
        "metrics": figures(runs),
        "params": _rows([run.params for run in runs]),
        "datasets": _rows([run.datasets for run in runs]),
        "families": list(dict.fromkeys(run.experiment for run in runs)),
    }
    return html.render(TEMPLATE, view)


def _rows(columns: Sequence[Any]) -> list[tuple[str, list[str]]]:
    return [(key, [str(column.get(key, "–")) for column in columns]) for key in differing(columns)]
