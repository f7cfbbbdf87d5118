"""Pictures of several layouts, the panels of stories and edits as squares: in these memory and work are estimated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from paco_core.config.params import PolicyRecipe
from paco_core.data.records.edit_records import EditRecord
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.sizes import grids_of
from paco_core.policies.families import edits, predecessors_of


def squared(recipe: PolicyRecipe, records: Sequence[PromptRecord], side: int, patch: int) -> list[int]:
    """The side of a square with as many pixels as what a pass paints of each record: its picture, or a story's panel.

    Args:
        side: scale of a training or an evaluation (:func:`paco_core.grpo.sizes.picture_size`).
        patch: pixels that a token is high and wide; a side is rounded up to a multiple of it.
    """
    areas = [math.prod(page.part_size) for page in grids_of(recipe, records, side, patch)]
    return [math.ceil(math.sqrt(area) / patch) * patch for area in areas] or [side]


def resized(
    recipe: PolicyRecipe,
    trained: Sequence[PromptRecord],
    painted: Sequence[PromptRecord],
    patch: int,
    of: Callable[[Sequence[int]], float] = max,
) -> PolicyRecipe:
    """The recipe with sides of squares as large as its pictures; of 2x2 panels, or of one, unchanged.

    Args:
        trained: prompts that its trainings sample.
        painted: those that its evaluations paint.
        of: ``max`` for the largest picture, which memory must hold, ``mean`` for work.
    """

    def one(records: Sequence[PromptRecord], side: int) -> int:
        areas = [square**2 for square in squared(recipe, records, side, patch)]
        return math.ceil(math.sqrt(of(areas)) / patch) * patch

    sides = {"train_size": one(trained, recipe.train_size), "eval_sizes": [one(painted, s) for s in recipe.eval_sizes]}
    return recipe.model_copy(update=sides)


def beside(recipe: PolicyRecipe, records: Sequence[PromptRecord]) -> list[list[int]]:
    """How many reference pictures stand beside each part of each record's picture: a story's panels, else one part.

    Of unknown prompts those of an edit of one picture, or of a story whose last panel has as many as the recipe allows.
    """
    before = predecessors_of(recipe)
    if before:
        return [[min(n, before) for n in range(math.prod(r.grid))] for r in records] or [list(range(before + 1))]
    one = int(edits(recipe))
    return [[len(r.references) if isinstance(r, EditRecord) else one] for r in records] or [[one]]


def pixels_a_pass(recipe: PolicyRecipe, records: Sequence[PromptRecord], side: int, patch: int) -> float:
    """Pixels that a pass sees on average: what it paints of a record, and as many of each reference picture."""
    sides, parts = squared(recipe, records, side, patch), beside(recipe, records)
    seen = [side**2 * (1 + count) for side, own in zip(sides, parts, strict=True) for count in own]
    return sum(seen) / len(seen)


def most_beside(recipe: PolicyRecipe, records: Sequence[PromptRecord]) -> int:
    """Reference pictures of the part that has most."""
    return max(count for parts in beside(recipe, records) for count in parts)
