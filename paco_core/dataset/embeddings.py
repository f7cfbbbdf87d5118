"""Text embeddings of prompts, by the text tower of an open_clip model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.files import DataError

if TYPE_CHECKING:
    import numpy as np

BATCH = 256


@dataclass(frozen=True)
class TextEmbeddings:
    """Rows of unit length in the order of the texts, and how many texts fill the model's window."""

    rows: np.ndarray  # (texts, width) float32
    full_windows: int  # texts that reach the last position of the window: cut off, or just fitting


def embed_texts(model: str | Path, texts: Sequence[str], device: str = "cpu") -> TextEmbeddings:
    """Embed texts with an open_clip model, from a folder or by name (``hf-hub:...``).

    Raises:
        DataError: when the folder holds no open_clip model, or an embedding is not finite.
    """
    import numpy as np
    import open_clip
    import torch

    source = str(model)
    if not source.startswith("hf-hub:"):
        if not (Path(source) / "open_clip_config.json").is_file():
            raise DataError(f"{source}: no open_clip model there (open_clip_config.json is missing)")
        source = f"local-dir:{source}"
    tower, _, _ = open_clip.create_model_and_transforms(source, device=device)
    tower.eval()
    tokenizer = open_clip.get_tokenizer(source)
    rows, full = [], 0
    for start in range(0, len(texts), BATCH):
        tokens = tokenizer(list(texts[start : start + BATCH])).to(device)
        full += int((tokens[:, -1] != _padding(tokenizer)).sum())
        with torch.inference_mode():
            rows.append(tower.encode_text(tokens, normalize=True).float().cpu().numpy())
    found = np.concatenate(rows)
    if not np.isfinite(found).all():
        raise DataError(f"{model}: gave an embedding that is not finite, for one of {len(texts)} texts")
    return TextEmbeddings(found, full)


def _padding(tokenizer: object) -> int:
    """The padding token: that of a Hugging Face tokenizer, or 0 as in open_clip's own."""
    inner = getattr(tokenizer, "tokenizer", None)
    found = getattr(inner, "pad_token_id", None)
    return int(found) if found is not None else 0
