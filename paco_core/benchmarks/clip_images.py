"""CLIP image embeddings by open_clip: the CLIP-I baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from paco_core.io.imports import uncollected
from paco_core.io.weights import load_open_clip

if TYPE_CHECKING:
    from pathlib import Path

    from PIL.Image import Image

BATCH = 256


class ClipImages:
    """The image tower of an open_clip model, from a folder or an open_clip name (``hf-hub:...``)."""

    @uncollected()
    def __init__(self, model: str | Path, device: str = "cpu") -> None:
        """Load the model.

        Raises:
            DataError: when the folder holds no open_clip model, or its weights are not whole.
        """
        self.model, self.preprocess, _ = load_open_clip(str(model), device)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(self.model.parameters()).device

    def embed(self, images: Sequence[Image]) -> np.ndarray:
        """Embeddings of unit length, (N, width) in float64."""
        parts = []
        for start in range(0, len(images), BATCH):
            part = images[start : start + BATCH]
            pixels = torch.stack([self.preprocess(image) for image in part])
            with torch.inference_mode():
                rows = self.model.encode_image(pixels.to(self.device), normalize=True)
            parts.append(rows.double().cpu().numpy())
        return np.concatenate(parts) if parts else np.zeros((0, 0))
