"""Generated images: the image with its policy, prompt and seed, before or after training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.data.records.panels import split_grid
from paco_core.io.image_metadata import save_image
from paco_core.sampling.origin import image_metadata

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.data.records.records import PromptRecord
    from paco_core.policies.truncation import Truncation
    from paco_core.sampling.origin import ImageOrigin

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
        origin: models and settings, for the metadata of a file. None for images of stages, which DVC records.
    """

    policy: str
    size: int
    when: str
    record: PromptRecord
    seed: int
    image: Image
    lost: Truncation | None = None
    origin: ImageOrigin | None = None

    @property
    def panels(self) -> list[Image]:
        return split_grid(self.image, self.record.layout)

    @property
    def panel_origins(self) -> list[ImageOrigin | None]:
        """The origin of each panel; None if the origin of the image is unknown."""
        return [
            self.origin and replace(self.origin, width=panel.width, height=panel.height, panel=number)
            for number, panel in enumerate(self.panels)
        ]

    def save(self, path: Path | str, *, metadata: bool = True) -> None:
        """Save the image with its origin as PNG, JPEG or WebP, by the suffix of ``path``.

        Args:
            metadata: False leaves the origin out.

        Raises:
            DataError: if the suffix is of another format.
        """
        save_image(self.image, Path(path), image_metadata([self.origin] if metadata and self.origin else []))


def truncations_by_policy(images: Iterable[GeneratedImage]) -> dict[str, Truncation]:
    """Truncations of prompts by policy and prompt id, because policies have different text windows."""
    return {f"{image.policy} {image.record.idx}": image.lost for image in images if image.lost is not None}
