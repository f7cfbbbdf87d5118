"""Policies by name: the recipe and the adapter of a name.

This module imports no heavy library, so a misspelled name fails at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.config.params import PARAMS_FILE, Params, load
from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.io.messages import did_you_mean
from paco_core.operations.promotion.champions import ALIASES, Champions, adapter_of
from paco_core.tasks.table import recipes_of

if TYPE_CHECKING:
    from paco_core.config.params_policies import PolicyRecipe
    from paco_core.tasks.base import Task

BASE = "base"


@dataclass(frozen=True)
class NamedPolicy:
    """A recipe, and the adapter that its training left, or one from elsewhere; None is the model before training."""

    name: str
    recipe: PolicyRecipe
    adapter: Path | str | None  # a hub id is a str


def chosen_policy(root: Path, name: str | None, task: Task) -> NamedPolicy:
    """As :func:`painter`, by the ``params.yaml`` of a project."""
    return painter(root, load(root / PARAMS_FILE), name, task)


def painter(root: Path, params: Params, name: str | None, task: Task) -> NamedPolicy:
    """The painter that a name, or the folder of an adapter, stands for.

    Args:
        name: as of :func:`resolve_policy`; or the folder, the file or the hub id (OWNER/NAME) of an adapter for the
            model of the task's first recipe; None is that recipe.

    Raises:
        DataError: as :func:`resolve_policy`.
    """
    recipes = _recipes(params, task)
    if name is not None and name != BASE and (Path(name).exists() or (name.count("/") == 1 and name[0] not in "./~")):
        path = Path(name)
        weights = _adapter(path) if path.is_dir() else path if path.exists() else name
        return NamedPolicy(path.name.removesuffix(".safetensors"), next(iter(recipes.values())), weights)
    return resolve_policy(root, params, name or next(iter(recipes)), task)


def resolve_policy(root: Path, params: Params, name: str, task: Task) -> NamedPolicy:
    """The painter of a name; no name leads to another file.

    Args:
        name: a recipe of ``policies.recipes``, ``RECIPE@champion`` (or ``@challenger``), or ``base``.

    Raises:
        DataError: when there is none of that name, or it was not trained yet.
    """
    recipes = _recipes(params, task)
    if name == BASE:
        first = next(iter(recipes))
        return NamedPolicy(first, recipes[first], None)
    recipe, _, alias = name.partition("@")
    if recipe not in recipes:
        choices = [BASE, *recipes]
        raise DataError(
            f"{name!r} is no policy for {task.name}: {did_you_mean(recipe, choices)}"
            f"choose {', '.join(choices)}, or a folder"
        )
    if not alias:
        folder = root / paths.POLICIES / recipe
        if not folder.is_dir():
            raise DataError(f"{folder}: not trained yet; run `dvc repro policies@{recipe}`, or choose {BASE}")
        return NamedPolicy(name, recipes[recipe], _adapter(folder))
    if alias not in ALIASES:
        raise DataError(f"{name!r}: {did_you_mean(alias, ALIASES)}the aliases are {', '.join(ALIASES)}")
    version = Champions(root).at(recipe, alias)
    if version is None:
        raise DataError(f"{recipe} has no {alias}; `paco promote {recipe}` makes one")
    return NamedPolicy(name, recipes[recipe], adapter_of(root, version))


def _recipes(params: Params, task: Task) -> dict[str, PolicyRecipe]:
    recipes = recipes_of(task, params.policies)
    if not recipes:
        raise DataError(f"no recipe of policies.recipes is for {task.name}")
    return recipes


def _adapter(folder: Path) -> Path:
    return folder / "adapter" if (folder / "adapter").is_dir() else folder
