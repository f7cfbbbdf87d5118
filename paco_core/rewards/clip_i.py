"""Similarity of a set's panels: mean cosine of their CLIP embeddings over unordered pairs."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from paco_core.models.open_clip import OpenClip
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.needs import validate_panel_counts

if TYPE_CHECKING:
    from paco_core.config.params import RewardTerm
    from paco_core.rewards.sources import Sources


class ClipI:
    """The CLIP-I baseline of the paper as a reward; it rewards copies, so combine it with other rewards."""

    name = "clip_i"

    def __init__(self, clip: OpenClip) -> None:
        self.clip = clip
        self.causes: dict[str, int] = {}

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        validate_panel_counts("clip_i", batch.records)
        rows = self.clip.images([panel for panels in batch.panels for panel in panels]).double().cpu().numpy()
        ends = np.cumsum([len(panels) for panels in batch.panels])
        sets = [rows[end - len(panels) : end] for end, panels in zip(ends, batch.panels, strict=True)]
        return np.array([np.mean([a @ b for a, b in combinations(embedded, 2)]) for embedded in sets])


def build(term: RewardTerm, sources: Sources) -> ClipI:
    """The reward of a term."""
    return ClipI(sources.clip("clip_i", term))
