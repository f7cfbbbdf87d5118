"""A comparison as one self-contained HTML page: pictures of the same step side by side, curves, figures, settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.experiments.comparison.collect import ComparedRun
from paco_core.experiments.comparison.table import differing, figures
from paco_core.report import charts, html

if TYPE_CHECKING:
    from PIL.Image import Image

TEMPLATE = Path(__file__).parent / "templates" / "comparison.html.j2"
WIDEST_PX = 640  # wider pictures are scaled down: the full ones are in MLflow

GetPicture = Callable[[ComparedRun, str, int], "Image"]
Moment = tuple[str, list[html.Picture | None]]  # of training: a picture of each run, None where a run has none of it


def axis(runs: Sequence[ComparedRun]) -> str:
    """The common axis: samples seen where all runs that have curves log it, else optimiser steps."""
    drawn = [run for run in runs if run.curves]
    return "samples seen" if drawn and all(run.samples for run in drawn) else "step"


def _places(run: ComparedRun, x_label: str) -> Mapping[int, float]:
    """Where each step lies on the axis; of one that the run knows no samples of nothing."""
    return run.samples if x_label == "samples seen" else {s: float(s) for c in run.curves.values() for s, _ in c}


def curve_charts(runs: Sequence[ComparedRun]) -> list[dict[str, str]]:
    """One chart a metric that any run has as a curve."""
    x_label, made = axis(runs), []
    places = [_places(run, x_label) for run in runs]
    for name in sorted({name for run in runs for name in run.curves if not name.startswith("seconds/")}):
        lines = []
        for n, run in enumerate(runs):
            points = [(places[n][step], value) for step, value in run.curves.get(name, ()) if step in places[n]]
            xs, ys = [x for x, _ in points], [y for _, y in points]
            lines.append(charts.Line(f"[{n}]", xs, ys, _style(n), dots=len(points) < 12))
        made.append({"title": name, "svg": charts.line_chart(lines, title=name, x_label=x_label)})
    return made


def picture_rows(runs: Sequence[ComparedRun], get: GetPicture) -> dict[str, list[Moment]]:
    """By picture series, a row for each moment at which any run has one."""
    x_label = axis(runs)
    found = {}
    for key in sorted({key for run in runs for key, _ in run.pictures}):
        at = [{_places(run, x_label).get(s, float(s)): s for name, s in run.pictures if name == key} for run in runs]
        rows = []
        for when in sorted({place for places in at for place in places}):
            moment = f"{when:g} {x_label}"
            cells = [
                _small(get(run, key, places[when]), f"[{n}] {key} at {moment}") if when in places else None
                for n, (run, places) in enumerate(zip(runs, at, strict=True))
            ]
            rows.append((moment, cells))
        found[key] = rows
    return found


def _style(number: int) -> str:
    return charts.STYLES[number % len(charts.STYLES)]


def _small(image: Image, alt: str) -> html.Picture:
    if image.width > WIDEST_PX:
        image = image.resize((WIDEST_PX, max(1, image.height * WIDEST_PX // image.width)))
    return html.Picture.from_image(image, alt)


def render(runs: Sequence[ComparedRun], get: GetPicture, made: str) -> str:
    """The page."""
    view = {
        "made": made,
        "heads": [{"number": n, "run": run, "marker": charts.legend_marker(_style(n))} for n, run in enumerate(runs)],
        "pictures": picture_rows(runs, get),
        "charts": curve_charts(runs),
        "metrics": figures(runs),
        "params": differing([run.params for run in runs], "–"),
        "datasets": differing([run.datasets for run in runs], "–"),
        "families": list(dict.fromkeys(run.experiment for run in runs)),
    }
    return html.render(TEMPLATE, view)
