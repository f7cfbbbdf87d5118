"""Table of tasks. The model family of a recipe selects its task, or its ``task`` if the family supports both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paco_core.policies.families import is_editing
from paco_core.tasks.base import Task
from paco_core.tasks.edits import EDITS
from paco_core.tasks.sets import SETS

if TYPE_CHECKING:
    from paco_core.config.params import PoliciesParams, PolicyRecipe

TASKS: tuple[Task, ...] = (SETS, EDITS)


def task_of(recipe: PolicyRecipe) -> Task:
    """The task of a recipe.

    Raises:
        DataError: when its family is unknown, or does not do the recipe's task.
    """
    return EDITS if is_editing(recipe) else SETS


def measured_by(benchmark: str) -> Task:
    """The task that a benchmark measures."""
    return next(task for task in TASKS if task.benchmark == benchmark)


def recipes_of(task: Task, params: PoliciesParams) -> dict[str, PolicyRecipe]:
    """The recipes for a task, by name."""
    return {name: recipe for name, recipe in params.recipes.items() if task_of(recipe) is task}
