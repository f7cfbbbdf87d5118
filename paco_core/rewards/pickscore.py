"""PickScore: a CLIP model that was trained on human preferences."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import AutoProcessor, CLIPModel

from paco_core.io.files import DataError
from paco_core.models.tokens import note_texts, token_counts, validate_tokens
from paco_core.models.weights import load_model, reading
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.needs import require_model

if TYPE_CHECKING:
    from paco_core.config.params import RewardTerm
    from paco_core.rewards.sources import Sources

SCALE = 26.0  # of Flow-GRPO (arXiv 2505.05470): brings PickScore_v1 to about 1
BATCH = 64
PROCESSOR = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"  # of PickScore_v1, which has no processor


class PickScore:
    """Scaled cosine of image and prompt, divided by 26, with a transformers CLIP such as yuvalkirstain/PickScore_v1.

    Raises:
        DataError: if it is not a CLIP model.
    """

    name = "pickscore"

    def __init__(self, model: str, device: str) -> None:
        try:
            self.model = load_model(CLIPModel, model).to(device)
        except DataError as error:
            raise DataError(f"no CLIP of transformers: {error}") from None
        try:
            with reading(model):
                self.processor = AutoProcessor.from_pretrained(model)
        except DataError:
            self.processor = AutoProcessor.from_pretrained(PROCESSOR)
        self.causes: dict[str, int] = {}

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        window = self.model.config.text_config.max_position_embeddings
        for record in batch.records:
            validate_tokens(self.processor.tokenizer, record.prompt)
        texts, count = [record.prompt for record in batch.records], partial(token_counts, self.processor.tokenizer)
        note_texts(self.name, texts, window, count)
        scores = []
        for start in range(0, len(batch), BATCH):
            part = batch.take(range(start, min(start + BATCH, len(batch))))
            inputs = self.processor(
                images=list(part.whole),
                text=[record.prompt for record in part.records],
                padding=True,
                truncation=True,
                max_length=window,
                return_tensors="pt",
            ).to(self.model.device)
            with torch.inference_mode():
                outputs = self.model(**inputs)
                cosines = (outputs.image_embeds * outputs.text_embeds).sum(dim=1)
                scores.append(self.model.logit_scale.exp() * cosines)
        return np.concatenate([score.double().cpu().numpy() for score in scores]) / SCALE


def build(term: RewardTerm, sources: Sources) -> PickScore:
    """The reward of a term."""
    return PickScore(sources.path(require_model("pickscore", term)), term.device)
