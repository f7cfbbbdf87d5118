"""What a reward is: pictures of prompts in, one number a picture out, NaN where it could not be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from paco_core.dataset.records import PromptRecord

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image


@dataclass(frozen=True)
class RewardBatch:
    """N generated sets: the prompt of each, its panels in reading order, and whole pictures where known."""

    records: Sequence[PromptRecord]
    panels: Sequence[Sequence[Image]]
    pictures: Sequence[Image] | None = None

    def __post_init__(self) -> None:
        if len(self.records) != len(self.panels):
            raise ValueError(f"{len(self.records)} prompts for {len(self.panels)} sets of panels")
        if self.pictures is not None and len(self.pictures) != len(self.records):
            raise ValueError(f"{len(self.records)} prompts for {len(self.pictures)} pictures")

    @property
    def whole(self) -> Sequence[Image]:
        """The whole pictures.

        Raises:
            ValueError: when the batch was made of panels only.
        """
        if self.pictures is None:
            raise ValueError("this reward looks at whole pictures, and the batch holds panels only")
        return self.pictures

    def take(self, rows: Sequence[int]) -> RewardBatch:
        """Some of the sets."""
        pictures = None if self.pictures is None else [self.pictures[row] for row in rows]
        return RewardBatch([self.records[row] for row in rows], [self.panels[row] for row in rows], pictures)

    @classmethod
    def join(cls, parts: Sequence[RewardBatch]) -> RewardBatch:
        """Batches one after the other."""
        pictures = None
        if all(part.pictures is not None for part in parts):
            pictures = [picture for part in parts for picture in part.whole]
        return cls([r for part in parts for r in part.records], [p for part in parts for p in part.panels], pictures)

    def __len__(self) -> int:
        return len(self.records)


class RewardFunction(Protocol):
    """A reward. ``causes`` counts the failures so far by their cause.

    Pointwise unless it has a true attribute ``groupwise``: then each call gets one whole group, all pictures of
    one prompt, and may compare them.
    """

    name: str
    causes: dict[str, int]

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        """Rewards (N,) in float64; NaN marks a sample that could not be scored."""
