"""Embeddings of pictures and texts by open_clip, shared by the rewards that compare them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from paco_core.io.imports import uncollected
from paco_core.io.weights import load_open_clip

if TYPE_CHECKING:
    from PIL.Image import Image

BATCH = 256


class OpenClip:
    """A CLIP from a folder or an open_clip name (``hf-hub:...``); embeddings have unit length, fp32.

    Raises:
        DataError: when the folder holds no open_clip model, or its weights are not whole.
    """

    @uncollected()
    def __init__(self, model: str, device: str) -> None:
        self.model, self.preprocess, self.tokenizer = load_open_clip(model, device)
        if self.device.type == "cuda":
            self.model.half()  # as open_clip's own fp16: half of the memory
        self.model.visual.to(memory_format=torch.channels_last)  # a third less time for a ResNet's convolutions
        self._texts: dict[str, torch.Tensor] = {}

    @property
    def device(self) -> torch.device:
        """Where its weights are. A name such as "cuda" would mean another GPU in another thread."""
        return next(self.model.parameters()).device

    def texts(self, texts: Sequence[str]) -> torch.Tensor:
        """Embeddings (N, width). A text met before is not embedded again: prompts repeat over a training."""
        self._embed(set(texts) - self._texts.keys())
        return torch.stack([self._texts[text] for text in texts])

    def _embed(self, new: Iterable[str]) -> None:
        todo = sorted(new)
        for start in range(0, len(todo), BATCH):
            part = todo[start : start + BATCH]
            tokens = self.tokenizer(part).to(self.device)
            with torch.inference_mode():
                rows = self.model.encode_text(tokens, normalize=True).float()
            self._texts.update(zip(part, rows, strict=True))

    def images(self, images: Sequence[Image]) -> torch.Tensor:
        """Embeddings (N, width)."""
        pixels = torch.stack([self.preprocess(image) for image in images]).to(
            self.device, next(self.model.parameters()).dtype
        )
        with torch.inference_mode():
            parts = [self.model.encode_image(part, normalize=True) for part in pixels.split(BATCH)]
        return torch.cat(parts).float()
