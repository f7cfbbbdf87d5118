"""A comparison as a table for the terminal: figures, their difference to the first run, and what else differs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paco_core.experiments.comparison.collect import ComparedRun, differing
from paco_core.io.text_table import text_table

WIDTH = 46  # of a value cell; longer values are cut, the page shows them whole


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return "nan" if math.isnan(value) else f"{value:.5g}"


def change(value: float | None, first: float | None) -> str:
    """The difference to the first run's figure."""
    if value is None or first is None or math.isnan(value - first):
        return ""
    return f"{value - first:+.3g}"


def text(runs: Sequence[ComparedRun], first: int = 0) -> str:
    """All figures of all runs, numbered from ``first``; parameters and data sets only where they differ."""
    heads = [f"[{n}] {run.title}" for n, run in enumerate(runs, first)]
    lines = [f"[{n}] {run.run_id}  {run.title}  {run.status}  {run.url}" for n, run in enumerate(runs, first)]
    if len({run.experiment for run in runs}) > 1:
        found = ", ".join(dict.fromkeys(run.experiment for run in runs))
        lines.append(f"of different families ({found}): only figures of the same name can be compared")
    metrics = sorted({key for run in runs for key in run.metrics})
    rows = []
    for key in metrics:
        values = [run.metrics.get(key) for run in runs]
        cells = [number(values[0])]
        cells += [f"{number(v)} {change(v, values[0])}".rstrip() for v in values[1:]]
        rows.append([key, *cells])
    lines += ["", *text_table(rows, ["figure", *heads], most=WIDTH)]
    for title, columns in (
        ("parameters that differ", [run.params for run in runs]),
        ("data that differ", [run.datasets for run in runs]),
    ):
        rows = [[key, *(str(column.get(key, "-")) for column in columns)] for key in differing(columns)]
        lines += ["", *(text_table(rows, [title, *heads], most=WIDTH) if rows else [f"{title}: none"])]
    return "\n".join(lines)
