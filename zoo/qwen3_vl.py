"""The zoo's Qwen3-VL: its architecture. Its tokenizer, images and training are those of the zoo's Qwen2.5-VL.

`Qwen3VLForConditionalGeneration` and `AutoProcessor` load its folder as they load the released checkpoints. An image
has 56 x 56 px and costs four visual tokens, so `reward.base` is the only key to change.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Qwen2Tokenizer, Qwen3VLConfig, Qwen3VLForConditionalGeneration

from zoo import vlm


def build_model(tokenizer: Qwen2Tokenizer, seed: int) -> Qwen3VLForConditionalGeneration:
    """A fresh network of about 3.0 M parameters: language 4 x 160, vision 4 x 128, one level of deepstack features."""
    text: dict[str, Any] = vlm.text_config(tokenizer) | {
        "head_dim": 32,
        "rope_parameters": {
            "rope_type": "default", "mrope_interleaved": True, "mrope_section": [6, 5, 5], "rope_theta": 1e6
        },
    }  # fmt: skip
    vision: dict[str, Any] = {
        "depth": 4,
        "hidden_size": 128,
        "num_heads": 4,
        "intermediate_size": 384,
        "out_hidden_size": 160,
        "patch_size": vlm.PATCH,
        "num_position_embeddings": vlm.PATCHES_PER_PANEL,
        "deepstack_visual_indexes": [1],
        "initializer_range": 0.04,
    }
    config = Qwen3VLConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=False, **vlm.vision_token_ids(tokenizer)
    )
    torch.manual_seed(seed)
    return Qwen3VLForConditionalGeneration(config)
