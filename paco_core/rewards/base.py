"""Rewards: functions that return one number per image, NaN if it could not be computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from paco_core.data.records.records import PromptRecord
from paco_core.io.files import DataError

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image


@dataclass(frozen=True)
class RewardBatch:
    """N generated images with their prompts.

    Attributes:
        panels: the panels of each image in reading order.
        pictures: the complete images. None if only panels are available.
        references: for an editing policy, the reference images of each image. The first one is the edited image.
        seed: for rewards that sample at random: a number per epoch in training, 0 in evaluation.
    """

    records: Sequence[PromptRecord]
    panels: Sequence[Sequence[Image]]
    pictures: Sequence[Image] | None = None
    references: Sequence[Sequence[Image]] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.records) != len(self.panels):
            raise ValueError(f"{len(self.records)} prompts for {len(self.panels)} sets of panels")
        for name, images in (("pictures", self.pictures), ("references", self.references)):
            if images is not None and len(images) != len(self.records):
                raise ValueError(f"{len(self.records)} prompts for {len(images)} {name}")

    @property
    def whole(self) -> Sequence[Image]:
        """The complete images.

        Raises:
            ValueError: if the batch contains panels only.
        """
        if self.pictures is None:
            raise ValueError("this reward needs complete images, but the batch contains panels only")
        return self.pictures

    @property
    def originals(self) -> Sequence[Image]:
        """The edited image of each edit: the first of its references.

        Raises:
            ValueError: if the images are not edits.
        """
        if self.references is None:
            raise ValueError("this reward compares an edit with its reference image, but the batch contains none")
        return [first for first, *_ in self.references]

    def take(self, rows: Sequence[int]) -> RewardBatch:
        """The batch of some rows."""
        pictures = None if self.pictures is None else [self.pictures[row] for row in rows]
        references = None if self.references is None else [self.references[row] for row in rows]
        records, panels = [self.records[row] for row in rows], [self.panels[row] for row in rows]
        return RewardBatch(records, panels, pictures, references, self.seed)

    @classmethod
    def join(cls, parts: Sequence[RewardBatch]) -> RewardBatch:
        """Concatenate batches."""
        pictures = references = None
        if all(part.pictures is not None for part in parts):
            pictures = [picture for part in parts for picture in part.whole]
        if all(part.references is not None for part in parts):
            references = [images for part in parts for images in part.references or ()]
        records = [record for part in parts for record in part.records]
        return cls(records, [panels for part in parts for panels in part.panels], pictures, references, parts[0].seed)

    def __len__(self) -> int:
        return len(self.records)


class RewardFunction(Protocol):
    """A reward. ``causes`` counts the failures so far by their cause.

    If it has a true attribute ``groupwise``, each call gets one complete group: all images of one prompt. Otherwise it
    is pointwise.
    """

    name: str
    causes: dict[str, int]

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        """Rewards (N,) in float64; NaN marks a sample that could not be scored."""


def validate_failed_share(
    failed: int, samples: int, max_failed_share: float, subject: str, causes: Mapping[str, int] | None = None
) -> None:
    """Check that enough samples have a score.

    Args:
        subject: description of the samples, for the error.
        causes: number of failures by cause.

    Raises:
        DataError: when more than ``max_failed_share`` of the samples have no score.
    """
    if failed > max_failed_share * samples:
        cause_counts = ", ".join(f"{count} x {cause}" for cause, count in (causes or {}).items()) or "no cause given"
        raise DataError(
            f"{subject}: {failed} of {samples} samples could not be scored, more than "
            f"execution.serving.max_failed_share={max_failed_share:g}: {cause_counts}"
        )
