"""Embeddings of images and texts by open_clip, for rewards, benchmarks and prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from paco_core.io.imports import gc_paused
from paco_core.models.tokens import note_texts, token_counts, validate_tokens
from paco_core.models.weights import load_open_clip

if TYPE_CHECKING:
    from pathlib import Path

    from PIL.Image import Image

BATCH = 256


class OpenClip:
    """A CLIP from a folder or an open_clip name (``hf-hub:...``); embeddings have unit length.

    Args:
        half_on_gpu: weights in float16 on a GPU, as open_clip's own fp16: half of the memory.

    Attributes:
        window: number of tokens of a text that the model reads.

    Raises:
        DataError: if the folder contains no open_clip model, or its weights are incomplete.
    """

    @gc_paused()
    def __init__(self, model: str | Path, device: str = "cpu", *, half_on_gpu: bool = False) -> None:
        self.model, self.preprocess, self.tokenizer = load_open_clip(str(model), device)
        if half_on_gpu and self.device.type == "cuda":
            self.model.half()
        self.model.visual.to(memory_format=torch.channels_last)  # a third less time for a ResNet's convolutions
        self.window = int(self.tokenizer.context_length)
        self._texts: dict[str, torch.Tensor] = {}

    @property
    def device(self) -> torch.device:
        """The device of the weights. A name such as "cuda" would mean another GPU in another thread."""
        return next(self.model.parameters()).device

    def lengths(self, texts: list[str]) -> list[int]:
        """Number of tokens of each text, including the first and the last token that the model adds."""
        inner = getattr(self.tokenizer, "tokenizer", None)  # of Hugging Face; open_clip's own adds two tokens itself
        if inner is not None:
            return token_counts(inner, texts)
        return [len(self.tokenizer.encode(text)) + 2 for text in texts]

    def texts(self, texts: Sequence[str], reader: str = "clip") -> torch.Tensor:
        """Embeddings (N, width) fp32. Texts are cached, because prompts repeat in a training.

        Args:
            reader: name under which the texts are counted (:func:`note_texts`).
        """
        note_texts(reader, texts, self.window, self.lengths)
        self._embed(set(texts) - self._texts.keys())
        return torch.stack([self._texts[text] for text in texts])

    def _embed(self, new: Iterable[str]) -> None:
        todo = sorted(new)
        for start in range(0, len(todo), BATCH):
            part = todo[start : start + BATCH]
            self._texts.update(zip(part, self._encoded(part), strict=True))

    def encode(self, texts: list[str]) -> np.ndarray:
        """Embeddings (N, width) fp32 of one batch of texts, without the cache."""
        rows: np.ndarray = self._encoded(texts).cpu().numpy()
        return rows

    def _encoded(self, texts: list[str]) -> torch.Tensor:
        for text in texts:
            validate_tokens(getattr(self.tokenizer, "tokenizer", None), text)
        tokens = self.tokenizer(texts).to(self.device)
        with torch.inference_mode():
            rows: torch.Tensor = self.model.encode_text(tokens, normalize=True).float()
        return rows

    def images(self, images: Sequence[Image]) -> torch.Tensor:
        """Embeddings (N, width) fp32."""
        dtype, parts = next(self.model.parameters()).dtype, []
        for start in range(0, len(images), BATCH):
            pixels = torch.stack([self.preprocess(image) for image in images[start : start + BATCH]])
            with torch.inference_mode():
                parts.append(self.model.encode_image(pixels.to(self.device, dtype), normalize=True).float())
        return torch.cat(parts)

    def embed(self, images: Sequence[Image]) -> np.ndarray:
        """As :meth:`images`, (N, width) in float64."""
        return self.images(images).double().cpu().numpy() if images else np.zeros((0, 0))
