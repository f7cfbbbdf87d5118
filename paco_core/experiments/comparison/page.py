"""A comparison as one self-contained HTML page: pictures of the same step side by side, curves, figures, settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.experiments.comparison.collect import ComparedRun
from paco_core.experiments.comparison.table import differing, figures
from paco_core.report import charts, html

if TYPE_CHECKING:
    from PIL.Image import Image

TEMPLATE = Path(__file__).parent / "templates" / "comparison.html.j2"
SEEN = "samples seen"

GetPicture = Callable[[ComparedRun, str, int], "Image"]
Moment = tuple[str, list[html.Picture | None]]  # of training: a picture of each run, None where a run has none of it


def axis(runs: Sequence[ComparedRun]) -> str:
    """The common axis: samples seen where all runs that have curves log it, else optimiser steps."""
    drawn = [run for run in runs if run.curves]
    return SEEN if drawn and all(run.samples for run in drawn) else "step"


def _place(run: ComparedRun, step: int, x_label: str, unknown: float) -> float:
    """Where a step lies on the axis; ``unknown`` where the run logged no samples at it."""
    return run.samples.get(step, unknown) if x_label == SEEN else float(step)


def curve_charts(runs: Sequence[ComparedRun]) -> list[dict[str, str]]:
    """One chart a metric that any run has as a curve."""
    x_label, made = axis(runs), []
    for name in sorted({name for run in runs for name in run.curves if not name.startswith("seconds/")}):
        lines = []
        for n, run in enumerate(runs):
            points = run.curves.get(name, ())
            xs = [_place(run, step, x_label, math.nan) for step, _ in points]
            lines.append(charts.Line(f"[{n}]", xs, [y for _, y in points], _style(n), dots=len(points) < 12))
        made.append({"title": name, "svg": charts.line_chart(lines, title=name, x_label=x_label)})
    return made


def picture_rows(runs: Sequence[ComparedRun], get: GetPicture) -> dict[str, list[Moment]]:
    """By picture series, a row for each moment at which any run has one."""
    x_label, found = axis(runs), {}
    for key in sorted({key for run in runs for key, _ in run.pictures}):
        at = [{_place(run, step, x_label, step): step for name, step in run.pictures if name == key} for run in runs]
        rows = []
        for when in sorted({place for steps in at for place in steps}):
            moment = f"{when:g} {x_label}"
            cells = [
                html.Picture.from_image(get(run, key, steps[when]), f"[{n}] {key} at {moment}")
                if when in steps
                else None
                for n, (run, steps) in enumerate(zip(runs, at, strict=True))
            ]
            rows.append((moment, cells))
        found[key] = rows
    return found


def _style(number: int) -> str:
    return charts.STYLES[number % len(charts.STYLES)]


def render(runs: Sequence[ComparedRun], get: GetPicture, made: str, baselines: Collection[str]) -> str:
    """The page; ``baselines``: ids of the runs that others are compared with."""
    view = {
        "made": made,
        "heads": [{"number": n, "run": run, "marker": charts.legend_marker(_style(n))} for n, run in enumerate(runs)],
        "pictures": picture_rows(runs, get),
        "charts": curve_charts(runs),
        "metrics": figures(runs, baselines),
        "baselines": ", ".join(f"[{n}]" for n, run in enumerate(runs) if run.run_id in baselines),
        "params": differing([run.params for run in runs]),
        "datasets": differing([run.datasets for run in runs]),
        "families": list(dict.fromkeys(run.experiment for run in runs)),
    }
    return html.render(TEMPLATE, view)
