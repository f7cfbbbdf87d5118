"""Summary of finished cells: what each variant gains over its bare model, and over the recipe as it is.

Images before and after share prompt and noise, and variants under one training seed share prompts and noise, so every
difference is taken case by case. Intervals are for other prompts and other training seeds (both are resampled). Another
seed trains on other prompts, so a case may be unseen under some of the seeds only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pandas as pd

from paco_core.benchmarks.statistics import Estimate, crossed_estimate
from paco_core.config.params import Params
from paco_core.config.resolved import resolved_section
from paco_core.experiments.compared_runs import Runs
from paco_core.experiments.grid import Result, log
from paco_core.experiments.variants import VARIANTS
from paco_core.io import paths
from paco_core.io.files import DataError, read_table
from paco_core.runtime.tracking import send_left_over
from paco_core.sampling.generated_image import AFTER, BEFORE
from paco_core.tasks.table import task_of
from paco_core.training.log import LOG

if TYPE_CHECKING:
    from paco_core.tasks.base import Task

LAST_EPOCHS = 5  # whose mean stands for the end of a training
SECONDS = ("sample", "wait_for_scores", "optimise")
HEALTH = {
    "reward_ratio": "reward_ratio",
    "panel_diversity": "panel_diversity",
    "clip_fraction": "update/clip_fraction",
}  # name in the report -> column of the training log


@dataclass(frozen=True)
class RecipeSummary:
    """The variants of one recipe.

    Attributes:
        task: what the recipe trains for.
        settings: the recipe and its benchmark, as the report shows them.
        variants: by name: ``title``, ``changes``, ``measures`` (by size and name, see :func:`_change`) and
            ``trainings`` (by seed, see :func:`_training`).
        plain: the variant that is the recipe as it is, which the others are compared with; None if it has no cell.
    """

    recipe: str
    task: Task
    settings: Mapping[str, Any]
    resamples: int
    variants: Mapping[str, Mapping[str, Any]]
    plain: str | None
    sizes: Sequence[int]
    measures: Sequence[str]


def summarise_recipes(results: Sequence[Result], params: Params) -> dict[str, RecipeSummary]:
    """A summary of each recipe, of results in the order of the variants and seeds."""
    root = results[0].root
    try:
        send_left_over(root)
        store: Runs | None = Runs(root)
    except DataError as error:
        log(f"no seconds in the report: {error}")
        store = None
    recipes: dict[str, list[Result]] = {}
    for result in results:
        recipes.setdefault(str(result.cell.variant.recipe), []).append(result)
    return {recipe: _summary(recipe, of_recipe, params, store) for recipe, of_recipe in recipes.items()}


def _summary(recipe: str, results: Sequence[Result], params: Params, store: Runs | None) -> RecipeSummary:
    rule = params.policies.recipe(recipe)
    task = task_of(rule)
    resamples = task.numbers(params).bootstrap
    tables = {(r.cell.variant.name, r.cell.seed): _cases(r, recipe, task) for r in results}
    cases = pd.concat(tables, names=["variant", "seed"])
    plain = next(variant.name for variant in VARIANTS if variant.recipe == recipe and not variant.changes)
    sizes, measures = sorted(int(size) for size in cases.index.unique("size")), [str(name) for name in cases]

    variants: dict[str, dict[str, Any]] = {}
    for variant in dict.fromkeys(result.cell.variant for result in results):
        trainings = {r.cell.seed: _training(r, recipe, store) for r in results if r.cell.variant is variant}
        shared = [seed for seed in trainings if (plain, seed) in tables and variant.name != plain]
        changes = {
            size: {
                name: _change(cases.xs(size, level="size")[name], variant.name, plain, shared, resamples)
                for name in measures
            }
            for size in sizes
        }
        variants[variant.name] = {
            "title": variant.title, "changes": variant.changes, "measures": changes, "trainings": trainings,
        }  # fmt: skip
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
        recipe, task, settings, resamples, variants, plain if plain in variants else None, sizes, measures
    )


def _cases(result: Result, recipe: str, task: Task) -> pd.DataFrame:
    """A row per state of training, size and group (a prompt, or a source image), a column per measure.

    Mean of a group over its cases; NaN if one of them failed, because the mean would be over other cases.
    """
    table = read_table(result.folder(task.results) / "per_prompt.parquet")
    table = table[(table["policy"] == recipe) & table["when"].isin((BEFORE, AFTER))]
    table = table.assign(group=table[task.group])  # edits of one image are drawn together
    table = table.drop(columns=["policy", "prompt_id", "seed", "picture", "task_type", "language"], errors="ignore")
    return table.groupby(["when", "size", "group"]).mean(skipna=False)


def _change(
    cases: pd.Series[float], variant: str, plain: str, shared: list[int], resamples: int
) -> dict[str, Estimate | None]:
    """One measure at one size: before training, after it, the change, and the change less the plain variant's.

    Args:
        shared: the seeds that both variants have; ``over_plain`` is None if there is none.
    """
    before, after = (cases.xs((variant, phase), level=("variant", "when")) for phase in (BEFORE, AFTER))
    over_plain = None
    if shared:
        plain_after = cases.xs((plain, AFTER), level=("variant", "when"))
        over_plain = _crossed(after.loc[shared], plain_after.loc[shared], resamples)
    return {
        "before": _crossed(before, None, resamples),
        "after": _crossed(after, None, resamples),
        "change": _crossed(after, before, resamples),
        "over_plain": over_plain,
    }


def _crossed(first: pd.Series[float], second: pd.Series[float] | None, resamples: int) -> Estimate:
    """Mean of ``first`` (less ``second``), by seed and group; a group that a seed does not measure is not missing."""
    table = first.unstack("group")
    less = None if second is None else second.unstack("group").reindex_like(table).to_numpy()
    estimate = crossed_estimate(table.to_numpy(), less, resamples=resamples)
    return replace(estimate, missing=estimate.missing - (table.size - len(first)))


def _training(result: Result, recipe: str, store: Runs | None) -> dict[str, Any]:
    """The experiment of a training, its epochs, the means of :data:`HEALTH`, and its seconds."""
    log = pd.read_csv(result.folder(paths.POLICIES / recipe) / LOG)[1:]  # the first row is before training
    return {
        "experiment": result.experiment,
        "epochs": len(log),
        "stopped": bool(result.metrics(paths.POLICIES.name, recipe)["stopped_early"]),
        **{name: float(log[key][-LAST_EPOCHS:].mean()) if key in log else None for name, key in HEALTH.items()},
        **read_training_time(store, f"{result.experiment}:{paths.POLICIES.name}@{recipe}", len(log)),
    }


def read_training_time(store: Runs | None, name: str, epochs: int) -> dict[str, Any]:
    """The MLflow run of a training, and its seconds, summed over epochs; None if MLflow lacks some of them.

    ``seconds``: sampling, waiting for scores and optimising; evaluations are not counted. ``processor_seconds``: of
    the training process in the same time, without the reward server. The run of a training that resumed has only the
    seconds of its last process. DVC's run cache restores outs without a run.

    Args:
        name: as :meth:`Runs.find` takes it.
    """
    unknown = {"run": None, "seconds": None, "processor_seconds": None}
    try:
        run = store.find(name)[0] if store else None
    except DataError:
        run = None
    if run is None:
        return unknown
    ended_at = datetime.fromtimestamp(run.started / 1000 + (run.seconds or 0), UTC)
    row = {**unknown, "run": run.run_id, "ended": f"{ended_at:%Y-%m-%dT%H:%M:%SZ}"}
    values = {
        part: [value for _, value in run.curves.get(key, ())] or [run.metrics[key]]
        for part in (*SECONDS, "processor")
        if (key := f"seconds/{part}") in run.metrics
    }
    if len(values.get("optimise", ())) < epochs:
        return row
    of = {part: sum(values.get(part, ())) for part in SECONDS}
    return {**row, "seconds": sum(of.values()), "seconds_of": of, "processor_seconds": sum(values["processor"])}
