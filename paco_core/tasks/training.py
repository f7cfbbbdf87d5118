"""One recipe of ``policies.recipes`` trained on the prompts of its task."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from paco_core.grpo.prompt_split import preferred
from paco_core.grpo.recipe import train
from paco_core.tasks.preferences import preferences_of
from paco_core.tasks.table import task_of

if TYPE_CHECKING:
    from paco_core.config.params import Params
    from paco_core.grpo.trainer import Outcome, RunContext


def train_recipe(params: Params, name: str, context: RunContext) -> tuple[Outcome, str]:
    """Train a recipe by its name; see :func:`paco_core.grpo.recipe.train`.

    Raises:
        DataError: when there is no such recipe, too few prompts, or a reward that cannot judge its pictures.
    """
    recipe = params.policies.recipe(name)
    task = task_of(recipe)
    split = task.split(recipe, context.read)
    if params.world == "storybook":
        task.validate_truth([*split.trained, *split.unseen])
    if recipe.offline:
        ids = {record.idx for record in (*split.trained, *split.unseen)}
        split = preferred(split, preferences_of(recipe, ids, context.read, context.reports.say))
        context.reports.say(f"{len(split.trained)} training prompts have a best and a worst picture")
    return train(params, name, split, partial(task.unseen_truth, params, context.read), context)
