"""What ``paco compare`` does."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from paco_core.experiments.comparison import page, table
from paco_core.experiments.comparison.collect import ComparedRun, Runs
from paco_core.io.answer import Answer
from paco_core.io.files import DataError, write_text
from paco_core.runtime.provenance.chain import STAGE_TAG

#: What the table shows of a run; its curves and pictures are on the page.
SHOWN = ("run_id", "title", "experiment", "status", "seconds", "url", "metrics", "params", "datasets")


def compare(root: Path, names: Sequence[str], out: Path, baseline: str | None = None) -> Answer:
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
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    chosen = [] if baseline is None else [run.run_id for run in store.find(baseline)]
    if baseline is not None and not set(chosen) & set(ids):
        raise DataError(f"baseline {baseline!r} is none of the compared runs; give one of {', '.join(names)}")
    baselines = [_baseline(group, chosen) for group in groups]
    write_text(out, page.render(runs, store.picture, made, baselines))
    tables = [table.text(group, baselines, ids.index(group[0].run_id)) for group in groups]
    text = "\n\n".join([*tables, f"{out}: pictures, curves and figures side by side"])
    summaries = [{name: getattr(run, name) for name in SHOWN} for run in runs]
    return Answer(text, {"page": out, "baselines": baselines, "runs": summaries})


def _baseline(group: Sequence[ComparedRun], chosen: Sequence[str]) -> str:
    """The id of the chosen run of a table, or of the oldest one."""
    return next((run.run_id for run in group if run.run_id in chosen), min(group, key=lambda run: run.started).run_id)


def _groups(found: Sequence[Sequence[ComparedRun]]) -> list[list[ComparedRun]]:
    """What a table shows together: all; of experiments that ran several stages, the runs of one stage."""
    runs = [run for several in found for run in several]
    if all(len(several) == 1 for several in found):
        return [runs]
    stages = dict.fromkeys(run.tags.get(STAGE_TAG) for run in runs)
    return [[run for run in runs if run.tags.get(STAGE_TAG) == stage] for stage in stages]
