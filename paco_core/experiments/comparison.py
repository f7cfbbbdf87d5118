"""Comparison of tracked runs: a table for the terminal, and a page with pictures, curves, figures and settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.experiments.compared_runs import ComparedRun, Runs, paired_difference
from paco_core.io.answer import Answer
from paco_core.io.files import DataError, write_text
from paco_core.io.text_table import text_table
from paco_core.report import charts, html
from paco_core.runtime.provenance.chain import STAGE_TAG

if TYPE_CHECKING:
    from PIL.Image import Image

TEMPLATE = Path(__file__).parent / "templates" / "comparison.html.j2"
SAMPLES_SEEN = "samples seen"
WIDTH = 72  # of a value cell; longer values are cut, the page shows them whole
NONE = "-"
#: What the JSON contains of a run; its curves and pictures are on the page.
COLUMNS = ("run_id", "title", "experiment", "status", "seconds", "url", "metrics", "params", "datasets")

GetPicture = Callable[[ComparedRun, str, int], "Image"]
Moment = tuple[str, list[html.Picture | None]]  # of training: a picture of each run, None where a run has none of it


def compare_runs(root: Path, names: Sequence[str], out: Path, baseline: str | None = None) -> Answer:
    """Write the page and return the table; its figures run by run.

    Args:
        baseline: one of ``names``, that the others are compared with; the oldest run by default.

    Raises:
        DataError: when a run is not found, one is given twice, or the baseline is none of them.
    """
    store = Runs(root)
    groups = _groups([store.find(name) for name in names])
    runs = [run for group in groups for run in group]
    ids = [run.run_id for run in runs]
    if len(set(ids)) < len(ids):
        twice = next(run for run in runs if ids.count(run.run_id) > 1)
        raise DataError(f"run {twice.run_id} ({twice.title}) is named twice; give the ids of runs that share a name")
    created_at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    chosen = [] if baseline is None else [run.run_id for run in store.find(baseline)]
    if baseline is not None and not set(chosen) & set(ids):
        raise DataError(f"baseline {baseline!r} is none of the compared runs; give one of {', '.join(names)}")
    baselines = [_baseline(group, chosen) for group in groups]
    write_text(out, comparison_page(runs, store.picture, created_at, baselines))
    tables = [comparison_table(group, baselines, ids.index(group[0].run_id)) for group in groups]
    text = "\n\n".join([*tables, f"{out}: pictures, curves and figures side by side"])
    summaries = [{name: getattr(run, name) for name in COLUMNS} for run in runs]
    return Answer(text, {"page": out, "baselines": baselines, "runs": summaries})


def _baseline(group: Sequence[ComparedRun], chosen: Sequence[str]) -> str:
    """The id of the chosen run of a table, or of the oldest one."""
    return next((run.run_id for run in group if run.run_id in chosen), min(group, key=lambda run: run.started).run_id)


def _groups(runs_by_name: Sequence[Sequence[ComparedRun]]) -> list[list[ComparedRun]]:
    """What a table shows together: all; of experiments that ran several stages, the runs of one stage."""
    runs = [run for several in runs_by_name for run in several]
    if all(len(several) == 1 for several in runs_by_name):
        return [runs]
    stages = dict.fromkeys(run.tags.get(STAGE_TAG) for run in runs)
    return [[run for run in runs if run.tags.get(STAGE_TAG) == stage] for stage in stages]


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
    evaluation_keys = {key for key in keys if _in_training(key) in keys - {key}}
    rows = []
    for key in sorted(keys - ends - evaluation_keys):
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


def comparison_table(runs: Sequence[ComparedRun], baselines: Collection[str], first: int = 0) -> str:
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
            "eval/… and Summary/goal are means over the few images of a training's evaluations, Summary/goal_change is "
            "their change since the start; t2is and gedit measure a policy on more"
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


def axis(runs: Sequence[ComparedRun]) -> str:
    """The common axis: samples seen where all runs that have curves log it, else optimiser steps."""
    runs_with_curves = [run for run in runs if run.curves]
    return SAMPLES_SEEN if runs_with_curves and all(run.samples for run in runs_with_curves) else "step"


def _place(run: ComparedRun, step: int, x_label: str, unknown: float) -> float:
    """Where a step lies on the axis; ``unknown`` where the run logged no samples at it."""
    return run.samples.get(step, unknown) if x_label == SAMPLES_SEEN else float(step)


def curve_charts(runs: Sequence[ComparedRun]) -> list[dict[str, str]]:
    """One chart a metric that any run has as a curve."""
    x_label, rendered = axis(runs), []
    for name in sorted({name for run in runs for name in run.curves if not name.startswith("seconds/")}):
        lines = []
        for n, run in enumerate(runs):
            points = run.curves.get(name, ())
            xs = [_place(run, step, x_label, math.nan) for step, _ in points]
            lines.append(charts.Line(f"[{n}]", xs, [y for _, y in points], _style(n), dots=len(points) < 12))
        rendered.append({"title": name, "svg": charts.line_chart(lines, title=name, x_label=x_label)})
    return rendered


def picture_rows(runs: Sequence[ComparedRun], get: GetPicture) -> dict[str, list[Moment]]:
    """By picture series, a row for each moment at which any run has one."""
    x_label, rows_by_key = axis(runs), {}
    for key in sorted({key for run in runs for key, _ in run.pictures}):
        at = [{_place(run, step, x_label, step): step for name, step in run.pictures if name == key} for run in runs]
        rows = []
        for step in sorted({place for steps in at for place in steps}):
            moment = f"{step:g} {x_label}"
            cells = [
                html.Picture.from_image(get(run, key, steps[step]), f"[{n}] {key} at {moment}")
                if step in steps
                else None
                for n, (run, steps) in enumerate(zip(runs, at, strict=True))
            ]
            rows.append((moment, cells))
        rows_by_key[key] = rows
    return rows_by_key


def _style(number: int) -> str:
    return charts.STYLES[number % len(charts.STYLES)]


def comparison_page(runs: Sequence[ComparedRun], get: GetPicture, created_at: str, baselines: Collection[str]) -> str:
    """The page; ``baselines``: ids of the runs that others are compared with."""
    view = {
        "made": created_at,
        "heads": [{"number": n, "run": run, "marker": charts.legend_marker(_style(n))} for n, run in enumerate(runs)],
        "pictures": picture_rows(runs, get),
        "charts": curve_charts(runs),
        "metrics": figures(runs, baselines),
        "baselines": ", ".join(f"[{n}]" for n, run in enumerate(runs) if run.run_id in baselines),
        "params": differing([run.params for run in runs]),
        "datasets": differing([run.datasets for run in runs]),
        "families": list(dict.fromkeys(run.experiment for run in runs)),
    }
    return html.render_page(TEMPLATE, view)
