"""Generated images: the image with its policy, prompt and seed, before or after training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paco_core.data.records.panels import split_grid

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.data.records.records import PromptRecord
    from paco_core.policies.truncation import Truncation

BEFORE, AFTER = "before", "after"
SEPARATELY = "separately"  # before training, each panel as a separate image
TOKENS_PER_PASS = 8192  # image and text tokens of one forward pass; batches of larger images are smaller


def images_per_pass(size: tuple[int, int], *, references: int, words: int) -> int:
    """Batch size of a benchmark.

    Args:
        size: height and width of the images in pixels.
        references: number of reference images per image.
        words: number of text tokens per image.
    """
    tokens = size[0] * size[1] // 256 * (1 + references) + words
    return max(1, TOKENS_PER_PASS // tokens)


@dataclass(frozen=True)
class GeneratedImage:
    """An image with its policy, prompt and seed.

    Attributes:
        when: state of the policy: :data:`BEFORE` or :data:`AFTER` training, or :data:`SEPARATELY`.
        lost: truncation of the prompt. None if the policy read the complete prompt.
    """

    policy: str
    size: int
    when: str
    record: PromptRecord
    seed: int
    image: Image
    lost: Truncation | None = None

    @property
    def panels(self) -> list[Image]:
        return split_grid(self.image, self.record.layout)


def truncations_by_policy(images: Iterable[GeneratedImage]) -> dict[str, Truncation]:
    """Truncations of prompts by policy and prompt id, because policies have different text windows."""
    return {f"{image.policy} {image.record.idx}": image.lost for image in images if image.lost is not None}
