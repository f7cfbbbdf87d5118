"""Rewards: images of prompts in, one number per image out, NaN where it could not be computed."""

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
    """N generated sets: the prompt of each, its panels in reading order, and whole pictures where known.

    ``references``: of an editing policy, what each one was made from: the picture that it is an edit of, and those that
    the instruction takes something from. ``draw``: what a reward draws by where it draws at random: a number of the
    epoch in training, 0 in evaluation.
    """

    records: Sequence[PromptRecord]
    panels: Sequence[Sequence[Image]]
    pictures: Sequence[Image] | None = None
    references: Sequence[Sequence[Image]] | None = None
    draw: int = 0

    def __post_init__(self) -> None:
        if len(self.records) != len(self.panels):
            raise ValueError(f"{len(self.records)} prompts for {len(self.panels)} sets of panels")
        for name, given in (("pictures", self.pictures), ("references", self.references)):
            if given is not None and len(given) != len(self.records):
                raise ValueError(f"{len(self.records)} prompts for {len(given)} {name}")

    @property
    def whole(self) -> Sequence[Image]:
        """The whole pictures.

        Raises:
            ValueError: when the batch was made of panels only.
        """
        if self.pictures is None:
            raise ValueError("this reward looks at whole pictures, and the batch holds panels only")
        return self.pictures

    @property
    def originals(self) -> Sequence[Image]:
        """The picture that each one is an edit of: the first of its references.

        Raises:
            ValueError: when the pictures are no edits.
        """
        if self.references is None:
            raise ValueError("this reward compares an edit with its reference picture, and the batch holds none")
        return [first for first, *_ in self.references]

    def take(self, rows: Sequence[int]) -> RewardBatch:
        """Some of the sets."""
        pictures = None if self.pictures is None else [self.pictures[row] for row in rows]
        references = None if self.references is None else [self.references[row] for row in rows]
        records, panels = [self.records[row] for row in rows], [self.panels[row] for row in rows]
        return RewardBatch(records, panels, pictures, references, self.draw)

    @classmethod
    def join(cls, parts: Sequence[RewardBatch]) -> RewardBatch:
        """Batches one after the other."""
        pictures = references = None
        if all(part.pictures is not None for part in parts):
            pictures = [picture for part in parts for picture in part.whole]
        if all(part.references is not None for part in parts):
            references = [given for part in parts for given in part.references or ()]
        records = [record for part in parts for record in part.records]
        return cls(records, [panels for part in parts for panels in part.panels], pictures, references, parts[0].draw)

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


def validate_failed_share(
    failed: int, samples: int, max_failed_share: float, subject: str, causes: Mapping[str, int] | None = None
) -> None:
    """Check that enough samples have a score.

    Args:
        subject: what the samples are of, for the message.
        causes: number of failures by cause.

    Raises:
        DataError: when more than ``max_failed_share`` of the samples have no score.
    """
    if failed > max_failed_share * samples:
        listed = ", ".join(f"{count} x {cause}" for cause, count in (causes or {}).items()) or "no cause given"
        raise DataError(
            f"{subject}: {failed} of {samples} samples could not be scored, more than "
            f"execution.serving.max_failed_share={max_failed_share:g}: {listed}"
        )
