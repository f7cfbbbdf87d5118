"""Compressibility: the share of a picture's bytes that JPEG saves; needs no model, for trying things out."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from paco_core.rewards.base import RewardBatch

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import RewardTerm
    from paco_core.rewards.sources import Sources

QUALITY = 95  # as in DDPO (arXiv 2305.13301), which rewards the negative file size instead


class Jpeg:
    """1 - bytes of the JPEG / bytes of the pixels: at most 1 whatever the size, higher for smoother pictures."""

    name = "jpeg"

    def __init__(self) -> None:
        self.causes: dict[str, int] = {}

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        return np.array([_saved(picture) for picture in batch.whole])


def _saved(picture: Image) -> float:
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=QUALITY)
    return 1.0 - len(buffer.getvalue()) / (3 * picture.width * picture.height)


def build(_term: RewardTerm, _sources: Sources) -> Jpeg:
    """The reward of a term."""
    return Jpeg()
