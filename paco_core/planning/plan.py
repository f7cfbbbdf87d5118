"""The arithmetic of a policy's training, computed before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dvc_project.project import stages_of
from paco_core.config.params import Params, PolicyRecipe
from paco_core.grpo.prompt_split import validate_even_batches, validate_whole_groups
from paco_core.grpo.sizes import grids_of, validate_sizes
from paco_core.io.answer import Answer, to_jsonable
from paco_core.io.files import DataError
from paco_core.planning.costs import training_cost, training_hours
from paco_core.planning.gpu_hours import describe_hours
from paco_core.planning.memory import server_gb, training_memory
from paco_core.planning.models import model_config
from paco_core.planning.passes import side_multiple
from paco_core.planning.planned_prompts import plan_prompts, plan_prompts_or_empty, trained_on
from paco_core.planning.workload import Workload
from paco_core.policies.families import max_predecessors, validate_pipeline_folder, validate_text_window
from paco_core.rewards import registry
from paco_core.tasks.base import PlannedPrompts
from paco_core.tasks.preferences import validate_planned_preferences
from paco_core.tasks.table import task_of
from paco_core.training.optimizers import validate_optimizer

if TYPE_CHECKING:
    from paco_core.grpo.prompt_split import PromptSplit

CARDS, FILLED = (24, 48, 80), 0.9  # GB of common GPUs, and the share of them that is planned


T = TypeVar("T")


class Problems(list[str]):
    """Lines that begin with a key of ``params.yaml``."""

    def attempt(self, key: str, check: Callable[..., T], *arguments: object) -> T | None:
        """What a check returns; None where it raises a DataError, which is noted under the key."""
        try:
            return check(*arguments)
        except DataError as error:
            message = str(error)
            self.append(message if message.startswith(key) else f"{key}: {message}")
            return None


def recipe_problems(params: Params, policy: str, root: Path, processes: int, planned: PlannedPrompts) -> Problems:
    """Problems that would stop a training. The training itself calls the same functions.

    Args:
        processes: number of training processes.
        planned: the prompts of the graph.
    """
    problems, key, recipe = Problems(), f"policies.recipes.{policy}", params.policies.recipes[policy]
    task = task_of(recipe)
    split = problems.attempt(key, task.plan_split, recipe, planned, lambda path: root / path)
    records = [] if split is None else [*split.trained, *split.unseen]
    problems.attempt(key, validate_planned_preferences, recipe, params, planned, root)
    problems.attempt(key, validate_text_window, key, recipe, root)
    problems.attempt(key, validate_pipeline_folder, root, recipe.model, recipe.family)
    for name, rewards in recipe.reward_sets.items():
        groupwise = problems.attempt(f"{key}.{name}", registry.validate_rewards, rewards, task.reward_input, records)
        if groupwise and name == "rewards":
            problems.attempt(f"{key}.{name}", validate_whole_groups, groupwise, recipe, processes)
        problems.attempt(f"{key}.{name}", registry.validate_judge_folders, root, rewards)
    problems.attempt(key, validate_optimizer, recipe.optimizer)
    problems.attempt(key, model_config, root, recipe.model)
    if split is not None:
        # The selection of diverse prompts is not known yet, and benchmarks generate images of the other prompts.
        possible = problems.attempt(key, task.candidates, recipe, planned, lambda path: root / path) or ([], [])
        possible_records, patch = [*possible[0], *possible[1]], side_multiple(root, recipe)
        if params.world == "storybook":
            problems.attempt(key, task.validate_truth, [*records, *possible_records])
        for side in dict.fromkeys([recipe.train_size, *recipe.eval_sizes]):
            at_side = recipe.model_copy(update={"train_size": side, "eval_sizes": [side]})
            problems.attempt(key, validate_sizes, [*records, *possible_records], at_side, patch)
        problems.attempt(key, _validate_even_batches, recipe, split, patch, processes)
    return problems


def _validate_even_batches(recipe: PolicyRecipe, split: PromptSplit, multiple: int, processes: int) -> None:
    validate_even_batches(grids_of(recipe, split.trained, recipe.train_size, multiple), recipe, processes)


def validate_recipe_plan(params: Params, policy: str, root: Path, processes: int = 1) -> None:
    """Check a recipe before a model is loaded.

    Raises:
        DataError: listing all problems (:func:`recipe_problems`), with valid values.
    """
    if problems := recipe_problems(params, policy, root, processes, plan_prompts(params, root)):
        raise DataError(f"{policy} cannot be trained:\n" + "\n".join(f"  {problem}" for problem in problems))


def _resources(params: Params, policy: str, root: Path, processes: int) -> tuple[list[str], dict[str, Any]]:
    """Memory and cost of one recipe; estimates, as lines and by name."""
    lines, estimates = _memory(params, policy, root)
    cost = training_cost(params, policy, root)
    if cost.seconds is not None and cost.device == "cpu":
        lines.append(f"cost                 about {cost.seconds / 60:.1f} min on two cores")
        return lines, {**estimates, "seconds": cost.seconds}
    hours = training_hours(params, policy, root)
    recipe = params.policies.recipes[policy]
    lines += [f"cost                 {text}" for text in describe_hours(hours, processes)]
    if not hours:
        lines.append(f"cost                 unknown: {recipe.model} is neither a folder nor a model that paco knows")
    else:
        converted = f", and of converting {recipe.base} weights" if recipe.base else ""
        lines.append(f"not counted          time of decoding and scoring{converted}")
    return lines, {
        **estimates,
        "gpu_hours": {gpu.gpu: gpu.hours for gpu in hours},
        "gpu_hours_measured": [gpu.gpu for gpu in hours if gpu.measured],
    }


def _memory(params: Params, policy: str, root: Path) -> tuple[list[str], dict[str, Any]]:
    """Memory of one recipe, as lines and by name."""
    recipe, memory = params.policies.recipes[policy], training_memory(params, policy, root)
    if memory is None:
        return [f"memory               unknown: {recipe.model} is neither a folder nor a model that paco knows"], {}
    phases = ", ".join(f"{name} {gb:.2g} GB" for name, gb in memory.phases_gb.items())
    lines = [
        f"memory               about {memory.peak_gb:.2g} GB per process: weights {memory.weights_gb:.2g}, "
        f"adapter, average and optimizer {memory.adapter_gb:.2g}, latents of an epoch {memory.latents_gb:.2g}, "
        f"largest pass {max(memory.passes_gb.values()):.2g}",
        f"phases               {phases} (on tensors without contents)",
    ]
    estimates = {**to_jsonable(memory), "phases_gb": memory.phases_gb, "memory_gb": memory.peak_gb}
    if not recipe.device.startswith("cuda"):
        return lines, estimates
    judges = registry.judges_of(*recipe.reward_sets.values()) if params.serving.device.startswith("cuda") else []
    servers = {
        "the reward's server" if judge is None else f"the server of {judge}": server_gb(params, root, judge=judge)
        for judge in judges
    }
    neighbors_gb = {**memory.reward_models_gb, **servers}
    total = memory.together_gb + sum(servers.values())
    around = ", ".join(f"{name} {gb:.0f} GB" for name, gb in neighbors_gb.items()) or "nothing"
    lines += [
        f"other models         {around}; on one GPU about {total:.0f} GB in all",
        f"GPUs                 {_cards(memory.together_gb, sum(servers.values()))} (a tenth left free)",
    ]
    return lines, {**estimates, "beside_gb": neighbors_gb, "together_gb": total}


def _cards(policy: float, server: float) -> str:
    """Common GPUs on which a training fits, with or without the reward server."""

    def fits(memory: int) -> str:
        if policy + server <= FILLED * memory:
            return "yes"
        return "with the server on another one" if policy <= FILLED * memory else "no"

    return ", ".join(f"{memory} GB {fits(memory)}" for memory in CARDS)


def _gathered(recipe: PolicyRecipe, workload: Workload) -> list[str]:
    """Lines about the training data of an epoch: sampled and scored images, or ranked images."""
    if recipe.offline:
        kind = "best against worst" if recipe.pictures_a_pair == 2 else "only the best image"
        return [
            f"pairs per epoch      {recipe.prompts_per_epoch} of ranked images, one per prompt, {kind}; nothing is "
            "sampled or scored but in evaluations"
        ]
    noise = f"noise at {recipe.noise_steps}" if recipe.noise_steps else "no noise"
    if recipe.num_noise_steps:
        noise = f"noise at {recipe.num_noise_steps} of {recipe.noise_steps}, drawn each epoch"
    rubric = (
        f" and {workload.images_an_epoch * workload.rubric_questions} questions of rubrics"
        if workload.rubric_questions
        else ""
    )
    return [
        f"images per epoch     {workload.images_an_epoch} = {recipe.prompts_per_epoch} prompts x {recipe.group_size}",
        *_stories(recipe, workload),
        f"sampling             {workload.rollout_batches} batches of {recipe.rollout_batch}, {workload.rollout_passes} "
        f"passes ({recipe.sampling_steps} steps, {noise})",
        f"scoring              {_distinct(workload)}{rubric}, "
        f"rewards {', '.join(recipe.rewards.terms)} by {recipe.rewards.aggregator}",
    ]


def _stories(recipe: PolicyRecipe, workload: Workload) -> list[str]:
    """A line about the panels of stories, which are generated one by one."""
    if not (before := max_predecessors(recipe)):
        return []
    return [
        f"stories              {workload.panels_a_story:.4g} panels each, one by one, each with at most {before} "
        f"earlier panels as references: {round(workload.images_an_epoch * workload.panels_a_story)} panels per epoch"
    ]


def _distinct(workload: Workload) -> str:
    """``576 distinct pairs (6 per image)``, with the number per layout if there are several layouts."""
    if not workload.questions_by_layout:
        return "pairs unknown until the prompts are here"
    per_image = f"{workload.questions_a_picture:.4g} per image"
    if len(workload.questions_by_layout) > 1:
        per_image += " on average: " + ", ".join(
            f"{layout} {n:.4g}" for layout, n in workload.questions_by_layout.items()
        )
    return f"{round(workload.images_an_epoch * workload.questions_a_picture)} distinct pairs ({per_image})"


def plan(params: Params, policy: str, root: Path = Path(), processes: int = 1) -> Answer:
    """The plan of one recipe: one line per quantity, with its calculation.

    Raises:
        DataError: when no recipe has this name, or its training cannot work.
    """
    if policy not in params.policies.recipes and policy in {stage.group for stage in stages_of(root).values()}:
        raise DataError(f"{policy} is a stage, whose cost `paco check` prints; a recipe of policies.recipes is planned")
    recipe = params.policies.recipe(policy)
    workload = Workload.from_params(params, policy, trained_on(plan_prompts_or_empty(params, root), recipe, root))
    validate_recipe_plan(params, policy, root, processes)
    asks = round(workload.images_an_epoch * workload.questions_a_picture)
    passes = workload.epochs * (workload.rollout_passes + workload.trained_passes)
    sizes = " and ".join(f"{side} px" for side in recipe.eval_sizes)
    resources, estimates = _resources(params, policy, root, processes)
    text = "\n".join(
        [
            f"{policy}: {recipe.model}, {workload.epochs} epochs at {recipe.train_size} px, evaluated at {sizes}",
            *_gathered(recipe, workload),
            f"training             {workload.trained_passes} passes with backward and "
            f"{workload.untrained_passes} without, {recipe.updates_per_epoch} updates of "
            f"{workload.micro_batches} micro-batches of {recipe.train_batch}, loss {recipe.loss}",
            f"optimiser steps      {workload.optimiser_steps} in all, averaged every {recipe.ema_every}",
            f"evaluations          {workload.evaluations}, {workload.evaluation_images} images each, "
            f"{recipe.eval_steps} steps",
            f"in all               {workload.images} images, {workload.scored_pairs}, {passes} passes "
            "without evaluation",
            *resources,
        ]
    )
    work = {
        **to_jsonable(workload),
        "scored_pairs_an_epoch": asks,
        "rubric_questions_an_epoch": workload.images_an_epoch * workload.rubric_questions,
        "images": workload.images,
    }
    return Answer(
        text, {"policy": policy, "model": recipe.model, "processes": processes, **work, "estimates": estimates}
    )
