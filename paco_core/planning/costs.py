"""Costs of the stages: their work, memory and time, estimated before a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dvc_project.project import DvcProject
from paco_core.config.params import Params, PolicyRecipe
from paco_core.data.records.records import PromptRecord
from paco_core.io.paths import in_round
from paco_core.planning import amounts
from paco_core.planning.amounts import CPU_SECONDS, seconds, size_factor
from paco_core.planning.gpu_hours import (
    GpuHours,
    PassWork,
    hours_by_gpu,
    hours_by_origin,
    image_work,
    present_gpus,
    published_gpus,
    training_work,
)
from paco_core.planning.memory import benchmark_gb, training_memory
from paco_core.planning.models import reward_gb
from paco_core.planning.passes import pixels_per_pass, references_per_part, side_multiple
from paco_core.planning.planned_prompts import candidates, plan_prompts_or_empty, trained_on
from paco_core.planning.workload import Workload
from paco_core.policies.families import family_of
from paco_core.runtime.rounds import params_of
from paco_core.runtime.stage import BASE_GB, Cost, Stage
from paco_core.tasks.base import PlannedPrompts, Task
from paco_core.tasks.table import recipes_of

NO_ESTIMATE = Cost("no estimate", BASE_GB, None)
WITHOUT_BACKWARD = 1 / 3  # of a trained pass's time


def stage_costs(stages: Mapping[str, Stage], params: Params, root: Path) -> dict[str, Cost]:
    """Estimate of every stage and item, by its name in DVC, in the order of the declarations."""
    costs = dict[str, Cost]()
    for name, stage in stages.items():
        if reason := stage.skipped(params):
            costs[name] = Cost(f"nothing: {reason}")
            continue
        cost = stage.cost(params, root) if stage.cost else NO_ESTIMATE
        if isinstance(cost, Cost):
            costs[name] = cost
        else:
            costs |= {f"{name}@{item}": item_cost for item, item_cost in cost.items()}
    return costs | _round_costs(stages, params, root)


def _round_costs(stages: Mapping[str, Stage], params: Params, root: Path) -> dict[str, Cost]:
    """Costs of the stages that each round repeats, with the parameters of the round."""
    costs = dict[str, Cost]()
    groups = DvcProject(root).groups if params.rounds.items else {}
    repeated = {name: stages[of] for name in groups if (of := in_round(name)) is not None and of in stages}
    for number in params.rounds.items:
        for name, stage in repeated.items():
            cost = stage.cost(params_of(params, name, number), root) if stage.cost else NO_ESTIMATE
            costs[f"{name}@{number}"] = cost if isinstance(cost, Cost) else cost[params.rounds.recipe]
    return costs


def training_seconds(workload: Workload, factor: float = 1.0) -> float:
    """Seconds of a training's epochs with the small models, without its evaluations.

    Args:
        factor: by which its passes take longer than at 64 px (:func:`paco_core.planning.amounts.size_factor`).
    """
    trained = workload.trained_passes + WITHOUT_BACKWARD * workload.untrained_passes
    passes = workload.rollout_passes * CPU_SECONDS["rollout_step"] + trained * CPU_SECONDS["train_sample"]
    scored = workload.images_an_epoch * workload.questions_a_picture * CPU_SECONDS["score_pair"]
    return workload.epochs * (factor * passes + scored)


def training_cost(params: Params, name: str, root: Path, planned: PlannedPrompts | None = None) -> Cost:
    """Cost of the training of one recipe.

    Args:
        planned: the prompts of the graph (:func:`plan_prompts_or_empty`), if the caller has them.

    Raises:
        DataError: when no recipe has this name.
    """
    recipe = params.policies.recipe(name)
    planned = planned or plan_prompts_or_empty(params, root)
    records = trained_on(planned, recipe, root)
    workload = Workload.from_params(params, name, records)
    memory = training_memory(params, name, root, planned)
    evaluations = workload.evaluations * workload.evaluation_images
    patch = side_multiple(root, recipe)
    epochs = training_seconds(workload, size_factor(pixels_per_pass(recipe, records, recipe.train_size, patch)))
    records_to_evaluate, images = candidates(planned, recipe, root)[1], workload.evaluations * recipe.eval_prompts
    image_seconds = _seconds_per_image(recipe, records_to_evaluate, recipe.eval_steps, patch)
    evaluation_seconds = images * len(recipe.eval_seeds) * image_seconds
    takes = seconds(params, epochs + evaluation_seconds)
    note = ""
    if takes is None and recipe.device.startswith("cuda"):
        takes, note = _on_gpu(training_hours(params, name, root, planned))
    memory_gb = memory.together_gb if memory else 0.0
    if memory is None or not recipe.device.startswith("cuda"):
        memory_gb += BASE_GB + reward_gb(params, root)
    return Cost(
        f"{workload.epochs} epochs, {workload.images} samples, {workload.scored_pairs}, "
        f"{workload.optimiser_steps} optimiser steps, {evaluations} evaluation images",
        memory_gb,
        takes,
        recipe.device,
        note,
    )


def training_hours(params: Params, name: str, root: Path, planned: PlannedPrompts | None = None) -> list[GpuHours]:
    """GPU hours of the passes of a training and its evaluations (:func:`hours_by_gpu`); none for an unknown model.

    Args:
        planned: the prompts of the graph (:func:`plan_prompts_or_empty`), if the caller has them.
    """
    recipe, planned = params.policies.recipe(name), planned or plan_prompts_or_empty(params, root)
    memory, records = training_memory(params, name, root, planned), trained_on(planned, recipe, root)
    workload = Workload.from_params(params, name, records)
    work = training_work(recipe, workload, records, candidates(planned, recipe, root)[1], root)
    return hours_by_gpu(work, memory.together_gb if memory else 0.0)


def _on_gpu(hours: Sequence[GpuHours]) -> tuple[float | None, str]:
    """Seconds on the GPU of this machine, and a note on how they are known; without such a GPU, hours on others."""
    if not hours:
        return None, ""
    if present_gpus():
        return hours[0].hours * 3600, f"{hours[0].short_name}, {hours[0].origin}"
    smallest = min(gpu.memory_gb for gpu in published_gpus() if gpu.gpu in {row.gpu for row in hours})
    names = {gpu.gpu for gpu in published_gpus() if gpu.memory_gb == smallest}
    texts = hours_by_origin(row for row in hours if row.gpu in names)
    return None, "; ".join(f"{text}, {origin}" for origin, text in texts.items())


def benchmark_cost(params: Params, task: Task, root: Path, at_most: str = "") -> Cost:
    """Cost of a benchmark that generates its cases at every size, before and after training."""
    numbers, pictures, takes = task.numbers(params), 0.0, 0.0
    planned, work = plan_prompts_or_empty(params, root), list[PassWork]()
    for recipe in recipes_of(task, params.policies).values():
        records, patch = candidates(planned, recipe, root)[1], side_multiple(root, recipe)
        cases = min(numbers.prompts, len(records) or numbers.prompts) * len(numbers.seeds)
        pictures += 2 * cases * len(recipe.eval_sizes)
        takes += 2 * cases * _seconds_per_image(recipe, records, numbers.steps, patch)
        work += image_work(recipe, records, 2 * cases, numbers.steps, root)
        if task.has_separate_panels(params):
            single_panels = cases * amounts.panels(params, root)
            panel_recipe = recipe.model_copy(update={"panels": "together"})
            pictures += single_panels * len(recipe.eval_sizes)
            takes += single_panels * _seconds_per_image(panel_recipe, [], numbers.steps, patch)
            work += image_work(panel_recipe, [], single_panels, numbers.steps, root)
    memory_gb = BASE_GB + benchmark_gb(params, task, planned, root)
    seconds_taken, note = seconds(params, takes), ""
    if seconds_taken is None and params.policies.device.startswith("cuda"):
        seconds_taken, note = _on_gpu(hours_by_gpu(work, memory_gb))
    return Cost(f"{at_most}{round(pictures)} images", memory_gb, seconds_taken, params.policies.device, note)


def _seconds_per_image(recipe: PolicyRecipe, records: Sequence[PromptRecord], steps: int, patch: int) -> float:
    """Mean seconds of one image at each evaluation size with the small models."""
    parts = references_per_part(recipe, records)
    passes = family_of(recipe.family).passes_per_step(recipe.guidance) * steps * sum(map(len, parts)) / len(parts)
    sizes = sum(size_factor(pixels_per_pass(recipe, records, side, patch)) for side in recipe.eval_sizes)
    return passes * sizes * CPU_SECONDS["rollout_step"]
