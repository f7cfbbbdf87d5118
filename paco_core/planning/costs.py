"""What each stage would do, need and cost with the parameters at hand, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dvc_project.project import DvcProject
from paco_core.config.params import Params
from paco_core.io.paths import in_round
from paco_core.planning import amounts
from paco_core.planning.amounts import CPU_SECONDS, seconds
from paco_core.planning.device_memory import device_memory, painting_gb
from paco_core.planning.foreseen import trained_on
from paco_core.planning.weights import model_gb
from paco_core.planning.workload import Workload
from paco_core.policies.families import edits, family_of, predecessors_of
from paco_core.runtime.rounds import params_of
from paco_core.runtime.stage import BASE_GB, Cost, Stage
from paco_core.tasks.base import Task
from paco_core.tasks.table import recipes_of

WITHOUT_BACKWARD = 1 / 3  # of a trained pass's time


def stage_costs(stages: Mapping[str, Stage], params: Params, root: Path) -> dict[str, Cost]:
    """Estimate of every stage and item, by the name that DVC has for it, in the order of the declarations."""
    found = dict[str, Cost]()
    for name, stage in stages.items():
        if reason := stage.skipped(params):
            found[name] = Cost(f"nothing: {reason}")
            continue
        cost = stage.cost(params, root) if stage.cost else Cost("no estimate", seconds=None)
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
            cost = (
                stage.cost(params_of(params, name, number), root) if stage.cost else Cost("no estimate", seconds=None)
            )
            found[f"{name}@{number}"] = cost if isinstance(cost, Cost) else cost[params.rounds.recipe]
    return found


def training_seconds(done: Workload) -> float:
    """Seconds of a training's epochs with the small models, without its evaluations."""
    trained = done.trained_passes + WITHOUT_BACKWARD * done.untrained_passes
    passes = done.rollout_passes * CPU_SECONDS["rollout_step"] + trained * CPU_SECONDS["train_sample"]
    scored = done.images_an_epoch * done.questions_a_picture * CPU_SECONDS["score_pair"]
    opponents = done.opponent_passes * CPU_SECONDS["rollout_step"]
    opponents += done.opponents * done.questions_a_picture * CPU_SECONDS["score_pair"]
    return done.epochs * (passes + scored) + opponents


def training_cost(params: Params, name: str, root: Path) -> Cost:
    """Of a policy by one recipe.

    Raises:
        DataError: when there is no recipe of that name.
    """
    recipe = params.policies.recipe(name)
    done = Workload.from_params(params, name, trained_on(params, recipe, root))
    family = family_of(recipe.family)
    held = device_memory(params, name, root) if recipe.device.startswith("cuda") else None
    evaluations = done.evaluations * done.evaluation_images
    passes = family.passes_a_step(recipe.guidance) * evaluations * recipe.eval_steps * 2 * done.panels_a_story
    takes = seconds(params, training_seconds(done) + passes * CPU_SECONDS["rollout_step"])
    models = 2.5 * model_gb(root, recipe.model) + model_gb(root, params.reward.base)
    return Cost(
        f"{done.epochs} epochs, {done.images} samples, {done.scored_pairs}, "
        f"{done.optimiser_steps} optimiser steps, {evaluations} evaluation pictures",
        held.together_gb if held else BASE_GB + models,
        takes,
        recipe.device,
        "" if takes is not None or edits(recipe) else "published: 6.0 h on 8 x H100",
    )


def benchmark_cost(params: Params, task: Task, root: Path, at_most: str = "") -> Cost:
    """Of a benchmark that paints its cases at every size, before and after training."""
    recipes, numbers = recipes_of(task, params.policies).values(), task.numbers(params)
    pictures, passes = 0, 0.0
    for recipe in recipes:
        painted = 2 * numbers.prompts * len(numbers.seeds) * len(recipe.eval_sizes)
        pictures += painted
        panels = amounts.panels(params, root) if predecessors_of(recipe) else 1
        passes += painted * panels * numbers.steps * family_of(recipe.family).passes_a_step(recipe.guidance)
    return Cost(
        f"{at_most}{pictures} pictures",
        BASE_GB + painting_gb(recipes, root),
        seconds(params, passes * 2 * CPU_SECONDS["rollout_step"]),
        params.policies.device,
    )
