"""From finished cells to a recipe's figures: what each variant gains over its bare model, and over the recipe as it is.

Images before and after share prompt and noise, and variants under one training seed share prompts and noise, so every
difference is taken case by case. Intervals are for other prompts and other training seeds (both drawn anew). Another
seed trains on other prompts, so that a case may be unseen under some seeds alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from paco_core.benchmarks.statistics import Estimate, crossed_estimate
from paco_core.config.params import Params
from paco_core.config.resolved import resolved_section
from paco_core.experiments.comparison.collect import Runs
from paco_core.experiments.grid import Result, say
from paco_core.experiments.reproduction.variants import VARIANTS
from paco_core.io import paths
from paco_core.io.files import DataError, read_table
from paco_core.painting.painted import AFTER, BEFORE
from paco_core.runtime.tracking import send_left_over
from paco_core.tasks.table import task_of
from paco_core.training.log import LOG

if TYPE_CHECKING:
    from paco_core.tasks.base import Task

LAST_EPOCHS = 5  # whose mean stands for the end of a training
SECONDS = ("sample", "wait_for_scores", "optimise")


@dataclass(frozen=True)
class CellChange:
    """One measure at one size: before training, after it, the change, and the change less the plain recipe's."""

    before: Estimate
    after: Estimate
    change: Estimate
    over_plain: Estimate | None  # None for the plain recipe, and where they share no seed


@dataclass(frozen=True)
class VariantRow:
    """One variant over its seeds."""

    title: str
    changes: Mapping[str, Any]  # of keys
    measures: Mapping[int, Mapping[str, CellChange]]  # size -> measure
    trainings: Mapping[int, Mapping[str, Any]]  # seed -> :func:`_training`

    def figures(self, name: str) -> list[float]:
        """A figure of the trainings, one per seed; NaN where it has none."""
        return [np.nan if t.get(name) is None else float(t[name]) for t in self.trainings.values()]


@dataclass(frozen=True)
class RecipeSummary:
    """One recipe's variants, and what they rest on.

    Attributes:
        task: what the recipe trains for.
        plain: the variant that is the recipe as it is, which the others are compared with; None where it has no cell.
        samples: the result of each variant under the first seed of the first one, for its images.
    """

    recipe: str
    task: Task
    settings: Mapping[str, Any]
    resamples: int
    variants: Mapping[str, VariantRow]
    plain: str | None
    sizes: Sequence[int]
    measures: Sequence[str]
    samples: Mapping[str, Result]


def summarise(results: Sequence[Result], params: Params) -> dict[str, RecipeSummary]:
    """A summary of each recipe, of results in the order of the variants and seeds."""
    recipes = dict.fromkeys(str(result.cell.variant.recipe) for result in results)
    runs = _Runs(results[0].root)
    return {
        name: _summary(name, [r for r in results if r.cell.variant.recipe == name], params, runs) for name in recipes
    }


def _summary(recipe: str, results: Sequence[Result], params: Params, runs: _Runs) -> RecipeSummary:
    rule = params.policies.recipe(recipe)
    task = task_of(rule)
    resamples = task.numbers(params).bootstrap
    tables = {(r.cell.variant.name, r.cell.seed): _cases(r, recipe, task) for r in results}
    cases = pd.concat(tables, names=["variant", "seed"])
    plain = next(variant.name for variant in VARIANTS if variant.recipe == recipe and not variant.changes)
    sizes, names = sorted(int(size) for size in cases.index.unique("size")), [str(name) for name in cases]

    rows: dict[str, VariantRow] = {}
    for variant in dict.fromkeys(result.cell.variant for result in results):
        name = variant.name
        trainings = {r.cell.seed: _training(r, recipe, runs) for r in results if r.cell.variant is variant}
        common = [seed for seed in trainings if (plain, seed) in tables and name != plain]
        measures = {
            size: {
                measure: _change(cases.xs(size, level="size")[measure], name, plain, common, resamples)
                for measure in names
            }
            for size in sizes
        }
        rows[name] = VariantRow(variant.title, variant.changes, measures, trainings)
    samples = {r.cell.variant.name: r for r in results if r.cell.seed == results[0].cell.seed}
    settings = {
        "profile": params.profile,
        "world": params.world,
        "recipe": recipe,
        recipe: {name: value for name, value in resolved_section(rule).items() if name != "seed"},
        "benchmark": task.benchmark,
        task.benchmark: task.numbers(params).model_dump(exclude={"bootstrap"}),
        "groups": len(next(iter(tables.values())).index.unique("group")),
    }
    return RecipeSummary(
        recipe, task, settings, resamples, rows, plain if plain in rows else None, sizes, names, samples
    )


def _cases(result: Result, recipe: str, task: Task) -> pd.DataFrame:
    """A row per state of training, size and group (a prompt, or a source image), a column per measure.

    Mean of a group over its cases; NaN if one of them failed, for the other ones are other cases than elsewhere.
    """
    table = read_table(result.folder(task.results) / "per_prompt.parquet")
    table = table[(table["policy"] == recipe) & table["when"].isin((BEFORE, AFTER))]
    table = table.assign(group=table[task.group])  # edits of one image are drawn together
    table = table.drop(columns=["policy", "prompt_id", "seed", "picture", "task_type", "language"], errors="ignore")
    return table.groupby(["when", "size", "group"]).mean(skipna=False)


def _change(cases: pd.Series[float], variant: str, plain: str, common: list[int], resamples: int) -> CellChange:
    """What a variant changes; ``common``: the seeds that it shares with the plain variant."""
    before, after = (cases.xs((variant, when), level=("variant", "when")) for when in (BEFORE, AFTER))
    over_plain = None
    if common:
        rival = cases.xs((plain, AFTER), level=("variant", "when"))
        over_plain = _crossed(after.loc[common], rival.loc[common], resamples)
    return CellChange(
        _crossed(before, None, resamples),
        _crossed(after, None, resamples),
        _crossed(after, before, resamples),
        over_plain,
    )


def _crossed(first: pd.Series[float], second: pd.Series[float] | None, resamples: int) -> Estimate:
    """Mean of ``first`` (less ``second``), by seed and group; a group that a seed does not measure is not missing."""
    table = first.unstack("group")
    less = None if second is None else second.unstack("group").reindex_like(table).to_numpy()
    estimate = crossed_estimate(table.to_numpy(), less, resamples=resamples)
    return replace(estimate, missing=estimate.missing - (table.size - len(first)))


class _Runs:
    """What MLflow knows of the trainings; nothing where its store does not answer."""

    def __init__(self, root: Path) -> None:
        try:
            send_left_over(root)
            self._store: Runs | None = Runs(root)
        except DataError as error:
            say(f"no seconds in the report: {error}")
            self._store = None

    def seconds(self, experiment: str, stage: str, epochs: int) -> dict[str, Any]:
        """The ``run`` of a stage in an experiment, and its seconds, summed over epochs; None if it lacks some of them.

        A training that resumed has the seconds of its last process alone. DVC's run cache restores outs without a run.
        """
        try:
            run = self._store.find(f"{experiment}:{stage}")[0] if self._store else None
        except DataError:
            run = None
        if run is None:
            return {"run": None, "seconds": None, "processor_seconds": None}
        ended = datetime.fromtimestamp(run.started / 1000 + (run.seconds or 0), UTC)
        known = {"run": run.run_id, "ended": f"{ended:%Y-%m-%dT%H:%M:%SZ}"}
        values = {
            part: [value for _, value in run.curves.get(key, ())] or [run.metrics[key]]
            for part in (*SECONDS, "processor")
            if (key := f"seconds/{part}") in run.metrics
        }
        if len(values.get("optimise", ())) < epochs:
            return {**known, "seconds": None, "processor_seconds": None}
        of = {part: sum(values.get(part, ())) for part in SECONDS}
        return {**known, "seconds": sum(of.values()), "seconds_of": of, "processor_seconds": sum(values["processor"])}


def _training(result: Result, recipe: str, runs: _Runs) -> dict[str, Any]:
    """What is reported of a training beside its measures.

    ``seconds``: sampling, waiting for scores and optimising, summed over epochs; evaluations are not counted.
    ``processor_seconds``: of the training process in the same time, without the reward server.
    """
    log = pd.read_csv(result.folder(paths.POLICIES / recipe) / LOG)[1:]  # the first row is before training
    figures = {
        "reward_ratio": "reward_ratio",
        "panel_diversity": "panel_diversity",
        "clip_fraction": "update/clip_fraction",
    }
    return {
        "experiment": result.experiment,
        "epochs": len(log),
        "stopped": bool(result.metrics(paths.POLICIES.name, recipe)["stopped_early"]),
        **{name: float(log[key][-LAST_EPOCHS:].mean()) if key in log else None for name, key in figures.items()},
        **runs.seconds(result.experiment, f"{paths.POLICIES.name}@{recipe}", len(log)),
    }
