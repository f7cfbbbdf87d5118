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
    """N generated sets: the prompt of each, and its panels in reading order."""

    records: Sequence[PromptRecord]
    panels: Sequence[Sequence[Image]]

    def __post_init__(self) -> None:
        if len(self.records) != len(self.panels):
            raise ValueError(f"{len(self.records)} prompts for {len(self.panels)} sets of panels")

    def __len__(self) -> int:
        return len(self.records)


class RewardFunction(Protocol):
    """A reward. ``causes`` counts the failures so far by their cause."""

    name: str
    causes: dict[str, int]

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        """Rewards (N,) in float64; NaN marks a sample that could not be scored."""
