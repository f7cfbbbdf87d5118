"""Paths of the stages of a round: the paths of the graph, below the folder of the round.

A stage ``round_NAME`` of ``dvc.yaml`` runs ``paco_core/stages/NAME.py`` again, and its items are the rounds. The paths
that ``dvc.yaml`` declares for the round are below ``data/rounds/N``. All other paths that the stage reads or writes are
those of the graph.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dvc_project.paths import overlap
from dvc_project.project import stages_of
from paco_core.config.params_rounds import FIRST, PLACE
from paco_core.io import paths

if TYPE_CHECKING:
    from paco_core.config.params import Params


def placed(root: Path, label: str, path: Path) -> Path:
    """The path that a stage uses for ``path``, relative to the root; ``path`` itself outside rounds."""
    stage = stages_of(root).get(label)
    if stage is None or stage.item is None or paths.in_round(stage.group) is None:
        return path
    round_path = Path(PLACE, str(stage.item), path.relative_to(paths.DATA)) if path.is_relative_to(paths.DATA) else path
    declared = (*stage.deps, *(out.path for out in stage.outs))
    return round_path if any(overlap(round_path.as_posix(), dep_or_out) for dep_or_out in declared) else path


def params_of(params: Params, name: str, item: str | None) -> Params:
    """The parameters of a stage: in a round those of the round."""
    if paths.in_round(name) is None or item is None:
        return params
    recipe, of_round = params.rounds.recipe, params.rounds.items[item]
    changed: dict[str, Any] = {
        "start": Path(of_round.after, paths.POLICIES.name, recipe, "adapter").as_posix(),
        "epochs_before": epochs_up_to(params, of_round.after),
    }
    if of_round.epochs is not None:
        changed["epochs"] = of_round.epochs
    recipes = {recipe: params.policies.recipes[recipe].model_copy(update=changed)}
    policies = params.policies.model_copy(update={"recipes": recipes})
    source = of_round.annotations or params.annotations.source
    annotations = params.annotations.model_copy(update={"source": source})
    return params.model_copy(update={"policies": policies, "annotations": annotations})


def epochs_up_to(params: Params, place: str) -> int:
    """How many epochs the policy in ``place``, ``data`` or ``data/rounds/N``, has been trained for in all."""
    recipe = params.policies.recipe(params.rounds.recipe)
    if place == FIRST:
        return recipe.epochs_before + recipe.epochs
    of_round = params.rounds.items[Path(place).name]
    return epochs_up_to(params, of_round.after) + (recipe.epochs if of_round.epochs is None else of_round.epochs)
