"""A comparison as a table for the terminal: figures, their difference to the first run, and what else differs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from paco_core.experiments.comparison.collect import ComparedRun
from paco_core.io.text_table import text_table

WIDTH = 46  # of a value cell; longer values are cut, the page shows them whole
NONE = "-"


def figures(runs: Sequence[ComparedRun]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Each figure with a value of every run, its 95% interval where it has one, and the difference to the first run's.

    The ends of an interval and the p of its test (``x_low``, ``x_high``, ``x_p``) stand with ``x``. What a training
    logged under a name of its own and its stage reported again at the end stands once.
    """
    keys = {key for run in runs for key in run.metrics}
    ends = {f"{key}{end}" for key in keys if {f"{key}_low", f"{key}_high"} <= keys for end in ("_low", "_high", "_p")}
    again = {key for key in keys if _in_training(key) in keys - {key}}
    return [
        (key, [_cell(run.metrics, key, runs[0].metrics if n else {}) for n, run in enumerate(runs)])
        for key in sorted(keys - ends - again)
    ]


def _in_training(key: str) -> str:
    """Under which name a training logs a figure that its stage reports at the end.

    ``policies/eval.64.x.after`` is ``eval/64/x``, and ``policies/eval.64.x.change`` is ``change/64/x``.
    """
    name = key.removeprefix("policies/")
    if name == key:
        return key
    if name.startswith("eval.") and name.endswith(".change"):
        name = f"change{name.removeprefix('eval').removesuffix('.change')}"
    return name.removesuffix(".after").replace(".", "/")


def _cell(metrics: Mapping[str, float], key: str, first: Mapping[str, float]) -> tuple[str, str]:
    """A figure with its interval, which is NaN for a single value, and the difference to the first run's."""
    if key not in metrics:
        return NONE, ""
    low, high = (metrics.get(f"{key}{end}", math.nan) for end in ("_low", "_high"))
    interval = "" if math.isnan(low + high) else f" ({low:.5g} to {high:.5g})"
    change = metrics[key] - first.get(key, math.nan)
    return f"{metrics[key]:.5g}{interval}", "" if math.isnan(change) else f"{change:+.3g}"


def differing(columns: Sequence[Mapping[str, str]]) -> list[tuple[str, list[str]]]:
    """Keys whose values are not the same in all columns, sorted, with the values; :data:`NONE` where there is none."""
    rows = [(key, [column.get(key, NONE) for column in columns]) for key in sorted({key for c in columns for key in c})]
    return [(key, values) for key, values in rows if len({*values}) > 1]


def text(runs: Sequence[ComparedRun], first: int = 0) -> str:
    """All figures of all runs, numbered from ``first``; parameters and data sets only where they differ."""
    heads = [f"[{n}] {run.title}" for n, run in enumerate(runs, first)]
    lines = [f"[{n}] {run.run_id}  {run.title}  {run.status}  {run.url}" for n, run in enumerate(runs, first)]
    if len({run.experiment for run in runs}) > 1:
        families = ", ".join(dict.fromkeys(run.experiment for run in runs))
        lines.append(f"of different families ({families}): only figures of the same name can be compared")
    if any(key.startswith("eval/") for run in runs for key in run.metrics):
        lines.append(
            "eval/… are means over the few pictures of a training's evaluations, change/… what training changed of "
            "them; t2is and gedit measure a policy on more"
        )
    rows = [[key, *(f"{value} {delta}".rstrip() for value, delta in cells)] for key, cells in figures(runs)]
    lines += ["", *text_table(rows, ["figure (95% interval)", *heads], most=WIDTH)]
    for title, columns in (
        ("parameters that differ", [run.params for run in runs]),
        ("data that differ", [run.datasets for run in runs]),
    ):
        rows = [[key, *values] for key, values in differing(columns)]
        lines += ["", *(text_table(rows, [title, *heads], most=WIDTH) if rows else [f"{title}: none"])]
    return "\n".join(lines)
