"""A comparison as a table for the terminal: figures, their difference to the first run, and what else differs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from paco_core.experiments.comparison.collect import ComparedRun
from paco_core.experiments.comparison.samples import paired_difference
from paco_core.io.text_table import text_table

WIDTH = 72  # of a value cell; longer values are cut, the page shows them whole
NONE = "-"


def figures(runs: Sequence[ComparedRun], baselines: Collection[str]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Each figure with a value of every run, its 95% interval where it has one, and the difference run - baseline.

    Where both runs logged scores of single samples, the difference is over the samples that both have, with its 95%
    interval. The ends of an interval (``x_low``, ``x_high``, and ``x_p`` of earlier versions) have no row.
    A figure that a training logged and its stage reported again has one row.

    Args:
        baselines: ids of the runs that the other runs are compared with.
    """
    keys = {key for run in runs for key in run.metrics}
    ends = {f"{key}{end}" for key in keys if {f"{key}_low", f"{key}_high"} <= keys for end in ("_low", "_high", "_p")}
    again = {key for key in keys if _in_training(key) in keys - {key}}
    rows = []
    for key in sorted(keys - ends - again):
        baseline = next((run for run in runs if run.run_id in baselines and key in run.metrics), None)
        rows.append((key, [(_value(run.metrics, key), _difference(run, baseline, key)) for run in runs]))
    return rows


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


def _value(metrics: Mapping[str, float], key: str) -> str:
    """A figure with its interval, which is NaN where there are too few samples."""
    if key not in metrics:
        return NONE
    low, high = (metrics.get(f"{key}{end}", math.nan) for end in ("_low", "_high"))
    return f"{metrics[key]:.5g}" + ("" if math.isnan(low + high) else f" ({low:.5g} to {high:.5g})")


def _difference(run: ComparedRun, baseline: ComparedRun | None, key: str) -> str:
    """Run - baseline; empty for the baseline, and where the two have no sample or figure in common."""
    if baseline is None or baseline is run or key not in run.metrics:
        return ""
    if key not in run.scores or key not in baseline.scores:
        change = run.metrics[key] - baseline.metrics[key]
        return "" if math.isnan(change) else f"{change:+.3g}"
    paired = paired_difference(run.scores[key], baseline.scores[key])
    if math.isnan(paired.mean):
        return ""
    interval = "" if math.isnan(paired.low) else f" ({paired.low:+.3g} to {paired.high:+.3g})"
    return f"{paired.mean:+.3g}{interval}" + (f", {paired.missing} missing" if paired.missing else "")


def differing(columns: Sequence[Mapping[str, str]]) -> list[tuple[str, list[str]]]:
    """Keys whose values are not the same in all columns, sorted, with the values; :data:`NONE` where there is none."""
    rows = [(key, [column.get(key, NONE) for column in columns]) for key in sorted({key for c in columns for key in c})]
    return [(key, values) for key, values in rows if len({*values}) > 1]


def text(runs: Sequence[ComparedRun], baselines: Collection[str], first: int = 0) -> str:
    """All figures of all runs, numbered from ``first``; parameters and data sets only where they differ.

    Args:
        baselines: ids of the runs that others are compared with.
    """
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
    lines += [f"signed figures: difference to [{n}]" for n, run in enumerate(runs, first) if run.run_id in baselines]
    rows = [[key, *(f"{value} {delta}".rstrip() for value, delta in cells)] for key, cells in figures(runs, baselines)]
    lines += ["", *text_table(rows, ["figure (95% interval)", *heads], most=WIDTH)]
    for title, columns in (
        ("parameters that differ", [run.params for run in runs]),
        ("data that differ", [run.datasets for run in runs]),
    ):
        rows = [[key, *values] for key, values in differing(columns)]
        lines += ["", *(text_table(rows, [title, *heads], most=WIDTH) if rows else [f"{title}: none"])]
    return "\n".join(lines)
