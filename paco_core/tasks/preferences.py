"""Preference data of the losses dpo and sft: the graph's rankings of its grids, or a folder of people's rankings."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.data.preferences import Preferences, preferences_of_grids, read_preferences
from paco_core.io import paths
from paco_core.io.files import DataError, read_table
from paco_core.io.rejected import Rejected
from paco_core.io.shards import GRID_COLUMNS, ShardReader
from paco_core.tasks.table import task_of

if TYPE_CHECKING:
    from paco_core.config.params import Params, PolicyRecipe
    from paco_core.tasks.base import PlannedPrompts, Read


def validate_rankings_source(recipe: PolicyRecipe, params: Params) -> None:
    """Check, before anything runs, that a recipe of an offline loss will have rankings.

    Raises:
        DataError: when there will be none, with the remedy.
    """
    if not recipe.offline or recipe.preferences is not None:
        return
    _validate_no_edits(recipe)
    if params.annotations.source == "none" or params.prompts.engine == "none" or not params.grids.seeds:
        raise DataError(
            f"loss {recipe.loss} learns from rankings, and the graph makes none (annotations.source "
            f"{params.annotations.source!r}, grids.seeds {params.grids.seeds}); rank its grids, or name a folder of "
            "rankings in preferences"
        )


def _validate_no_edits(recipe: PolicyRecipe) -> None:
    if task_of(recipe).reward_input == "reference":
        raise DataError(
            f"loss {recipe.loss} learns from rankings, and the graph ranks no edits; name a folder of "
            "rankings in preferences"
        )


def preferences_of(
    recipe: PolicyRecipe, prompts: Collection[str], read: Read, log: Callable[[str], object]
) -> Preferences:
    """The best and the worst image of each ranked prompt.

    Args:
        prompts: ids of the existing prompts.
        log: prints rejected rows.

    Raises:
        DataError: when there are no rankings, or none with a difference.
    """
    if recipe.preferences is not None:
        rejected = Rejected()
        preferences, place = read_preferences(read(Path(recipe.preferences)), prompts, rejected), recipe.preferences
        rejected.print(log)
    else:
        _validate_no_edits(recipe)
        from paco_core.data.annotation.rankings import COLUMNS  # imports pandas, which `paco check` does without

        instances = read_table(read(paths.RANKINGS) / "instances.parquet", require=COLUMNS)
        annotations = read_table(read(paths.ANNOTATIONS) / "rankings.parquet")
        grids = ShardReader.below(read(paths.GRIDS), require=GRID_COLUMNS)
        preferences, place, rejected = (
            Preferences(preferences_of_grids(instances, annotations), grids.read),
            "annotations",
            Rejected(),
        )
    if not preferences.pairs:
        raise DataError(f"{place}: no prompt has a best and a worst picture in its rankings{rejected.example}")
    return preferences


def validate_planned_preferences(recipe: PolicyRecipe, params: Params, planned: PlannedPrompts, root: Path) -> None:
    """Check that :func:`preferences_of` will succeed, if the ids of prompts are known before the stages run.

    Raises:
        DataError: as :func:`preferences_of` and :meth:`Preferences.at_image_size`.
    """
    if not recipe.offline:
        return
    validate_rankings_source(recipe, params)
    if recipe.preferences is None or not (root / recipe.preferences).is_dir():
        return  # `paco check` reports a folder that is missing
    if task_of(recipe).reward_input == "reference":
        ids_known = params.edit_prompts.source == "file"
    else:
        ids_known = params.prompts.engine != "openai" or recipe.prompts is not None
    trained, unseen = task_of(recipe).candidates(recipe, planned, lambda path: root / path)
    records = {record.idx: record for record in (*trained, *unseen)}
    if ids_known and records:
        preferences = preferences_of(recipe, records, lambda path: root / path, lambda _line: None)
        for name in preferences.pairs:
            preferences.at_image_size(records[name], recipe.record_size)
