"""CLIPScore of the complete image and the complete prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paco_core.models.open_clip import OpenClip
from paco_core.rewards.base import RewardBatch

if TYPE_CHECKING:
    import numpy as np

    from paco_core.config.params import RewardTerm
    from paco_core.rewards.sources import Sources

WEIGHT = 2.5  # of Hessel et al.


class ClipScore:
    """2.5 max(cosine, 0) (Hessel et al., arXiv 2104.08718, equation 1)."""

    name = "clip_score"

    def __init__(self, clip: OpenClip) -> None:
        self.clip = clip
        self.causes: dict[str, int] = {}

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        texts = self.clip.texts([record.prompt for record in batch.records], self.name)
        cosines = (self.clip.images(batch.whole) * texts).sum(dim=1).double().cpu().numpy()
        score: np.ndarray = WEIGHT * cosines.clip(min=0.0)
        return score


def build(term: RewardTerm, sources: Sources) -> ClipScore:
    """The reward of a term."""
    return ClipScore(sources.clip("clip_score", term))
