"""What each stage would do, need and cost with the parameters at hand, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dvc_project.project import DvcProject
from paco_core.config.params import Params, PolicyRecipe
from paco_core.data.records.records import PromptRecord
from paco_core.io.paths import in_round
from paco_core.planning import amounts
from paco_core.planning.amounts import CPU_SECONDS, seconds, size_factor
from paco_core.planning.memory import benchmark_gb, training_memory
from paco_core.planning.models import model_gb
from paco_core.planning.passes import pixels_per_pass, references_per_part, side_multiple
from paco_core.planning.planned_prompts import candidates, plan_prompts_or_empty, trained_on
from paco_core.planning.workload import Workload
from paco_core.policies.families import family_of, is_editing
from paco_core.runtime.rounds import params_of
from paco_core.runtime.stage import BASE_GB, Cost, Stage
from paco_core.tasks.base import PlannedPrompts, Task
from paco_core.tasks.table import recipes_of

NO_ESTIMATE = Cost("no estimate", BASE_GB, None)
WITHOUT_BACKWARD = 1 / 3  # of a trained pass's time


def stage_costs(stages: Mapping[str, Stage], params: Params, root: Path) -> dict[str, Cost]:
    """Estimate of every stage and item, by the name that DVC has for it, in the order of the declarations."""
    found = dict[str, Cost]()
    for name, stage in stages.items():
        if reason := stage.skipped(params):
            found[name] = Cost(f"nothing: {reason}")
            continue
        cost = stage.cost(params, root) if stage.cost else NO_ESTIMATE
        if isinstance(cost, Cost):
            found[name] = cost
        else:
            found |= {f"{name}@{item}": one for item, one in cost.items()}
    return found | _round_costs(stages, params, root)


def _round_costs(stages: Mapping[str, Stage], params: Params, root: Path) -> dict[str, Cost]:
    """Of the stages that each round runs again, with its parameters."""
    found = dict[str, Cost]()
    groups = DvcProject(root).groups if params.rounds.items else {}
    again = {name: stages[of] for name in groups if (of := in_round(name)) is not None and of in stages}
    for number in params.rounds.items:
        for name, stage in again.items():
            cost = stage.cost(params_of(params, name, number), root) if stage.cost else NO_ESTIMATE
            found[f"{name}@{number}"] = cost if isinstance(cost, Cost) else cost[params.rounds.recipe]
    return found


def training_seconds(done: Workload, factor: float = 1.0) -> float:
    """Seconds of a training's epochs with the small models, without its evaluations.

    Args:
        factor: by which its passes take longer than at 64 px (:func:`paco_core.planning.amounts.size_factor`).
    """
    trained = done.trained_passes + WITHOUT_BACKWARD * done.untrained_passes
    passes = done.rollout_passes * CPU_SECONDS["rollout_step"] + trained * CPU_SECONDS["train_sample"]
    scored = done.images_an_epoch * done.questions_a_picture * CPU_SECONDS["score_pair"]
    return done.epochs * (factor * passes + scored)


def training_cost(params: Params, name: str, root: Path, planned: PlannedPrompts | None = None) -> Cost:
    """Of a policy by one recipe.

    Args:
        planned: the prompts of the graph (:func:`plan_prompts_or_empty`), if the caller has them.

    Raises:
        DataError: when there is no recipe of that name.
    """
    recipe = params.policies.recipe(name)
    planned = planned or plan_prompts_or_empty(params, root)
    records = trained_on(planned, recipe, root)
    done = Workload.from_params(params, name, records)
    memory = training_memory(params, name, root, planned)
    evaluations = done.evaluations * done.evaluation_images
    patch = side_multiple(root, recipe)
    epochs = training_seconds(done, size_factor(pixels_per_pass(recipe, records, recipe.train_size, patch)))
    watched, pictures = candidates(planned, recipe, root)[1], done.evaluations * recipe.eval_prompts
    each = pictures * len(recipe.eval_seeds) * _painting_seconds(recipe, watched, recipe.eval_steps, patch)
    takes = seconds(params, epochs + each)
    held = memory.together_gb if memory else 0.0
    if memory is None or not recipe.device.startswith("cuda"):
        held += BASE_GB + model_gb(root, params.reward.base)
    return Cost(
        f"{done.epochs} epochs, {done.images} samples, {done.scored_pairs}, "
        f"{done.optimiser_steps} optimiser steps, {evaluations} evaluation pictures",
        held,
        takes,
        recipe.device,
        "" if takes is not None or is_editing(recipe) else "published: 6.0 h on 8 x H100",
    )


def benchmark_cost(params: Params, task: Task, root: Path, at_most: str = "") -> Cost:
    """Of a benchmark that paints its cases at every size, before and after training."""
    numbers, pictures, takes = task.numbers(params), 0.0, 0.0
    cases, planned = numbers.prompts * len(numbers.seeds), plan_prompts_or_empty(params, root)
    for recipe in recipes_of(task, params.policies).values():
        records, patch = candidates(planned, recipe, root)[1], side_multiple(root, recipe)
        pictures += 2 * cases * len(recipe.eval_sizes)
        takes += 2 * cases * _painting_seconds(recipe, records, numbers.steps, patch)
        if task.has_separate_panels(params):
            alone, each = cases * amounts.panels(params, root), recipe.model_copy(update={"panels": "together"})
            pictures += alone * len(recipe.eval_sizes)
            takes += alone * _painting_seconds(each, [], numbers.steps, patch)
    return Cost(
        f"{at_most}{round(pictures)} pictures",
        BASE_GB + benchmark_gb(params, task, planned, root),
        seconds(params, takes),
        params.policies.device,
    )


def _painting_seconds(recipe: PolicyRecipe, records: Sequence[PromptRecord], steps: int, patch: int) -> float:
    """Seconds of one picture at each evaluation size with the small models, on average."""
    parts = references_per_part(recipe, records)
    passes = family_of(recipe.family).passes_per_step(recipe.guidance) * steps * sum(map(len, parts)) / len(parts)
    sizes = sum(size_factor(pixels_per_pass(recipe, records, side, patch)) for side in recipe.eval_sizes)
    return passes * sizes * CPU_SECONDS["rollout_step"]
