"""Passes that decide how much memory a training needs: those over its largest images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paco_core.config.params import PolicyRecipe
from paco_core.data.records.edit_records import EditRecord
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.panel_references import count_panel_references
from paco_core.grpo.sizes import PUBLIC_TOKEN, grids_of, side_multiple_of
from paco_core.policies.base import Size
from paco_core.policies.families import family_of, is_editing, max_predecessors


@dataclass(frozen=True)
class Pass:
    """One pass over a batch: ``train`` = forward and backward; ``sample`` = without gradient, then decoding.

    ``size`` = height and width in pixels of an image, or of a story's panel; ``references`` = reference images of each.
    """

    kind: Literal["train", "sample"]
    size: Size
    references: int
    batch: int

    def __str__(self) -> str:
        references = f" with {self.references} references" if self.references else ""
        return f"{self.kind} {self.batch} of {self.size[0]}x{self.size[1]}{references}"


@dataclass(frozen=True)
class PassMemory:
    """Memory of one image generator with its adapter, in GB.

    ``transformer_gb`` and ``vae_gb`` = weights; ``spared_gb`` = what ``base`` spares of them; ``adapter_weights`` =
    number of trained weights; ``passes`` = peak of each pass, minus weights, adapter and its gradient.
    """

    transformer_gb: float
    vae_gb: float
    spared_gb: float
    adapter_weights: int
    passes: Mapping[str, float]

    @property
    def weights_gb(self) -> float:
        """Weights of transformer and VAE as they are stored."""
        return self.transformer_gb + self.vae_gb - self.spared_gb


def side_multiple(root: Path, recipe: PolicyRecipe) -> int:
    """Pixels that the sides of a recipe's images are multiples of."""
    return side_multiple_of(root / recipe.model, recipe.family) or PUBLIC_TOKEN


def tokens_per_pixel(root: Path, recipe: PolicyRecipe) -> float:
    """Tokens of latents for each pixel of a recipe's images."""
    return float((family_of(recipe.family).side_tokens / side_multiple(root, recipe)) ** 2)


def references_per_part(recipe: PolicyRecipe, records: Sequence[PromptRecord]) -> list[list[int]]:
    """Number of reference images of each part of each record's image: a story's panels, else one part.

    Of unknown prompts those of an edit of one image, or of a story whose last panel has as many as the recipe allows.
    """
    before = max_predecessors(recipe)
    if before:
        most = family_of(recipe.family).references[1]
        return [count_panel_references(record, before, most) for record in records] or [list(range(before + 1))]
    num_references = int(is_editing(recipe))
    return [[len(r.references) if isinstance(r, EditRecord) else num_references] for r in records] or [[num_references]]


def part_sizes(recipe: PolicyRecipe, records: Sequence[PromptRecord], side: int, multiple: int) -> list[Size]:
    """Height and width of what a pass generates of each record: its image, or a story's panel.

    Args:
        side: scale of a training or an evaluation (:func:`paco_core.grpo.sizes.picture_size`); without records, the
            image is a square of this side.
        multiple: pixels that the model's sides are multiples of.
    """
    return [page.part_size for page in grids_of(recipe, records, side, multiple)] or [(side, side)]


def largest_image(recipe: PolicyRecipe, records: Sequence[PromptRecord], side: int, multiple: int) -> tuple[Size, int]:
    """Size of the largest part, and the largest number of reference images."""
    references = max(count for parts in references_per_part(recipe, records) for count in parts)
    return max(part_sizes(recipe, records, side, multiple), key=math.prod), references


def pixels_per_pass(recipe: PolicyRecipe, records: Sequence[PromptRecord], side: int, multiple: int) -> float:
    """Pixels that a pass sees on average: of the part that it generates, and as many of each reference image."""
    sizes, parts = part_sizes(recipe, records, side, multiple), references_per_part(recipe, records)
    pixels = [math.prod(size) * (1 + count) for size, counts in zip(sizes, parts, strict=True) for count in counts]
    return sum(pixels) / len(pixels)
