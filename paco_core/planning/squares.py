"""Pictures of several layouts as squares, in which memory and work of a training are estimated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from paco_core.config.params import PolicyRecipe
from paco_core.data.records.records import PromptRecord
from paco_core.data.records.subfigures import grid_size


def squared(
    recipe: PolicyRecipe, records: Sequence[PromptRecord], patch: int, of: Callable[[Sequence[int]], float] = max
) -> PolicyRecipe:
    """The recipe with sides of squares that have as many pixels as its pictures; of 2x2 panels, or of one, unchanged.

    Args:
        records: prompts that it is trained on.
        patch: pixels that a token is high and wide; a side is rounded up to a multiple of it.
        of: ``max`` for the largest picture, which memory must hold, ``mean`` for work.
    """

    def side(asked: int) -> int:
        areas = [math.prod(grid_size(record.layout, (asked, asked))) for record in records]
        found = of(areas) if areas else asked**2
        return asked if found == asked**2 else math.ceil(math.sqrt(found) / patch) * patch

    if recipe.record_size != "aspect":
        return recipe
    sides = {"train_size": side(recipe.train_size), "eval_sizes": [side(one) for one in recipe.eval_sizes]}
    return recipe.model_copy(update=sides)
