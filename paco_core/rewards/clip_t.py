"""Prompt following of a set: mean over panels of the cosine between a panel and its own sub-prompt (CLIP)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.dataset.records import split_panels
from paco_core.files import DataError
from paco_core.rewards.base import RewardBatch

if TYPE_CHECKING:
    import numpy as np
    import torch

BATCH = 256


class ClipT:
    """CLIP similarity by open_clip, from a folder or an open_clip name (``hf-hub:...``)."""

    name = "clip_t"

    def __init__(self, model: str, device: str) -> None:
        import open_clip

        folder = Path(model)
        if not model.startswith("hf-hub:") and not (folder / "open_clip_config.json").is_file():
            raise DataError(f"{model}: no open_clip model there (open_clip_config.json is missing)")
        source = model if model.startswith("hf-hub:") else f"local-dir:{folder}"
        self.model, _, self.preprocess = open_clip.create_model_and_transforms(source, device=device)
        self.model.eval()
        self.tokenizer = open_clip.get_tokenizer(source)
        self.device = device
        self.causes: dict[str, int] = {}
        self._texts: dict[str, Any] = {}

    def _encode_texts(self, texts: set[str]) -> None:
        """Embed texts that were not met before; prompts repeat over a training, pictures do not."""
        import torch

        new = sorted(texts - self._texts.keys())
        for start in range(0, len(new), BATCH):
            part = new[start : start + BATCH]
            tokens = self.tokenizer(part).to(self.device)
            with torch.inference_mode():
                rows = self.model.encode_text(tokens, normalize=True).float()
            self._texts.update(zip(part, rows, strict=True))

    def _encode_images(self, pixels: torch.Tensor) -> torch.Tensor:
        import torch

        with torch.inference_mode():
            parts = [self.model.encode_image(part, normalize=True) for part in pixels.to(self.device).split(BATCH)]
        return torch.cat(parts).float()

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        import numpy as np
        import torch

        asked = [split_panels(record.prompt, record.layout)[1] for record in batch.records]
        texts = [text for row in asked for text in row]
        self._encode_texts(set(texts))
        pixels = torch.stack([self.preprocess(panel.convert("RGB")) for row in batch.panels for panel in row])
        cosines = (self._encode_images(pixels) * torch.stack([self._texts[text] for text in texts])).sum(dim=1)
        owners = np.repeat(np.arange(len(batch)), [len(row) for row in asked])
        totals = np.bincount(owners, weights=cosines.double().cpu().numpy(), minlength=len(batch))
        return totals / np.bincount(owners, minlength=len(batch))
