"""Pictures of several layouts, or the panels of stories, as squares: in these memory and work are estimated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from paco_core.config.params import PolicyRecipe
from paco_core.data.records.records import PromptRecord
from paco_core.data.records.subfigures import grid_size
from paco_core.policies.families import predecessors_of


def squared(
    recipe: PolicyRecipe, records: Sequence[PromptRecord], patch: int, of: Callable[[Sequence[int]], float] = max
) -> PolicyRecipe:
    """The recipe with sides of squares that have as many pixels as its pictures; of 2x2 panels, or of one, unchanged.

    Of stories these are the panels, and ``predecessors`` is at most what the longest of them needs.

    Args:
        records: prompts that it is trained on.
        patch: pixels that a token is high and wide; a side is rounded up to a multiple of it.
        of: ``max`` for the largest picture, which memory must hold, ``mean`` for work.
    """
    before, parts = predecessors_of(recipe), parts_of(recipe, records)

    def side(asked: int) -> int:
        wholes = [
            math.prod(grid_size(record.layout, (asked, asked))) if recipe.record_size == "aspect" else asked**2
            for record in records
        ]
        areas = [whole // count for whole, count in zip(wholes, parts, strict=False)]
        found = of(areas) if areas else asked**2
        return asked if found == asked**2 else math.ceil(math.sqrt(found) / patch) * patch

    sides = {"train_size": side(recipe.train_size), "eval_sizes": [side(one) for one in recipe.eval_sizes]}
    longest = {"predecessors": max(1, min(before, max(parts) - 1))} if before else {}
    return recipe.model_copy(update=sides | longest)


def parts_of(recipe: PolicyRecipe, records: Sequence[PromptRecord]) -> list[int]:
    """In how many parts the picture of each record is painted: the panels of a story, else one."""
    if not records or not predecessors_of(recipe):
        return [1] * max(1, len(records))
    return [math.prod(record.grid) for record in records]
