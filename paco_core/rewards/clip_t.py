"""Prompt following of a set: mean over panels of the cosine between a panel and its own sub-prompt (CLIP)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paco_core.data.records.records import split_panels
from paco_core.models.open_clip import OpenClip
from paco_core.rewards.base import RewardBatch

if TYPE_CHECKING:
    from paco_core.config.params import RewardTerm
    from paco_core.rewards.sources import Sources


class ClipT:
    """CLIP similarity of each panel with its own text."""

    name = "clip_t"

    def __init__(self, clip: OpenClip) -> None:
        self.clip = clip
        self.causes: dict[str, int] = {}

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        panel_texts = [split_panels(record.prompt, record.layout)[1] for record in batch.records]
        texts = self.clip.texts([text for row in panel_texts for text in row], self.name)
        cosines = (self.clip.images([panel for row in batch.panels for panel in row]) * texts).sum(dim=1)
        owners = np.repeat(np.arange(len(batch)), [len(row) for row in panel_texts])
        totals = np.bincount(owners, weights=cosines.double().cpu().numpy(), minlength=len(batch))
        return totals / np.bincount(owners, minlength=len(batch))


def build(term: RewardTerm, sources: Sources) -> ClipT:
    """The reward of a term."""
    return ClipT(sources.clip("clip_t", term))
