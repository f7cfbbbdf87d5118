"""Text embeddings of prompts, by one of three kinds of encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from paco_core.data.records.records import PromptRecord
from paco_core.io.files import DataError
from paco_core.io.imports import gc_paused
from paco_core.models.hub import from_hub
from paco_core.models.open_clip import OpenClip
from paco_core.models.tokens import token_counts, validate_tokens
from paco_core.models.weights import load_model, reading, validate_finite

BATCH = 256


class TextEncoder(Protocol):
    """Turns texts into unit vectors; sees no more than ``window`` tokens of each."""

    window: int

    def lengths(self, texts: list[str]) -> list[int]:
        """Tokens of each text, those included that the model adds."""
        ...

    def encode(self, texts: list[str]) -> np.ndarray:
        """(texts, width) float32 rows of unit length."""
        ...


@dataclass(frozen=True)
class PromptEmbeddings:
    """Rows of unit length in the order of the prompts, and the embedded texts."""

    rows: np.ndarray  # (prompts, width) float32
    by_theme: int  # prompts longer than the window, embedded by their theme instead
    cut_themes: int  # themes among them that are longer than the window, too, and were cut


def embed_prompts(
    encoder: TextEncoder, records: Sequence[PromptRecord], text: Literal["prompt", "theme"] = "prompt"
) -> PromptEmbeddings:
    """Embed every prompt, or its theme if the prompt is longer than the encoder's window.

    Args:
        text: ``theme`` embeds the themes of all prompts.

    Raises:
        DataError: with the record whose embedding is not finite.
    """
    rows, by_theme, cut = [], 0, 0
    for start in range(0, len(records), BATCH):
        part = records[start : start + BATCH]
        prompts = [record.prompt for record in part]
        fits = [text == "prompt" and length <= encoder.window for length in encoder.lengths(prompts)]
        chosen = [record.prompt if fit else record.theme for record, fit in zip(part, fits, strict=True)]
        lengths = encoder.lengths(chosen)
        by_theme += fits.count(False)
        cut += sum(length > encoder.window for length in lengths)
        embeddings = encoder.encode(chosen)
        if not np.isfinite(embeddings).all():
            bad = part[int(np.flatnonzero(~np.isfinite(embeddings).all(axis=1))[0])]
            raise DataError(f"record {bad.idx}: its text embedding is not finite; is diverse_prompts.model damaged?")
        rows.append(embeddings)
    return PromptEmbeddings(np.concatenate(rows), by_theme, cut)


@gc_paused()
def load_encoder(kind: str, model: str | Path, device: str = "cpu") -> TextEncoder:
    """Load a text encoder from a folder or from the Hub.

    Args:
        kind: ``open_clip`` (the text tower; names begin with ``hf-hub:``), ``sentence_transformers``, or
            ``transformers`` (``text_encoder`` and ``tokenizer`` in the folder of a diffusers pipeline, for example the
            zoo's FLUX).

    Raises:
        DataError: if the folder does not contain a model of this kind, or a package is missing.
    """
    kinds: dict[str, Callable[[str, str], TextEncoder]] = {
        "open_clip": OpenClip,
        "sentence_transformers": Sentences,
        "transformers": Pooled,
    }
    with from_hub(model):
        return kinds[kind](str(model), device)


def _need(model: str, file: str, kind: str) -> None:
    if Path(model).is_dir() and not (Path(model) / file).exists():
        raise DataError(f"{model}: no {kind} model there ({file} is missing)")


class Sentences:
    """A sentence-transformers model."""

    def __init__(self, model: str, device: str) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError:
            raise DataError(
                "diverse_prompts.encoder 'sentence_transformers' needs the package: pip install 'paco-rl[sentences]'"
            ) from None
        _need(model, "modules.json", "sentence-transformers")
        with reading(model):
            self._model = SentenceTransformer(model, device=device)
        validate_finite(self._model.state_dict(), model)
        self.window = int(self._model.max_seq_length or 1 << 30)

    def lengths(self, texts: list[str]) -> list[int]:
        return token_counts(self._model.tokenizer, texts)

    def encode(self, texts: list[str]) -> np.ndarray:
        for text in texts:
            validate_tokens(self._model.tokenizer, text)
        embeddings = self._model.encode(texts, batch_size=BATCH, normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(embeddings, dtype=np.float32)


class Pooled:
    """The text encoder of a diffusers pipeline, with its pooled output normalized to unit length."""

    def __init__(self, model: str, device: str) -> None:
        _need(model, "text_encoder/config.json", "pipeline's text")
        with reading(model):
            self._tokenizer = AutoTokenizer.from_pretrained(model, subfolder="tokenizer")
        self._model = load_model(AutoModel, model, subfolder="text_encoder").to(device)
        self._device = device
        self.window = int(min(self._tokenizer.model_max_length, self._model.config.max_position_embeddings))

    def lengths(self, texts: list[str]) -> list[int]:
        return token_counts(self._tokenizer, texts)

    def encode(self, texts: list[str]) -> np.ndarray:
        for text in texts:
            validate_tokens(self._tokenizer, text)
        tokens = self._tokenizer(texts, padding=True, truncation=True, max_length=self.window, return_tensors="pt")
        with torch.inference_mode():
            pooled = self._model(**tokens.to(self._device)).pooler_output
            return _plain(torch.nn.functional.normalize(pooled.float(), dim=-1))


def _plain(rows: Any) -> np.ndarray:
    return rows.float().cpu().numpy()  # type: ignore[no-any-return]
