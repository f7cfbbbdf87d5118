"""The text encoder of the small FLUX 3 Klein and Qwen-Image-2.1: a Qwen3-VL that reads texts as the small klein."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from transformers import (
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from paco_core.reward_model.network import distinct_limits
from zoo.klein_reader import END, START, WIDTH, make_identity
from zoo.set_batches import klein_weights
from zoo.vlm import CHAT_TEMPLATE

IMAGE_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
LANGUAGE = "model.language_model."  # prefix of the weights of the language model


def text_encoder_of(klein: Any, vocab_size: int, layers: int) -> Qwen3VLForConditionalGeneration:
    """A frozen Qwen3-VL with the trained layers of the small klein's text encoder. Its vision encoder is random.

    Args:
        vocab_size: number of tokens. Those after the klein's tokens have random embeddings.
        layers: of the language model. Layers after the trained ones return their input.
    """
    text = klein.config.to_dict() | {"vocab_size": vocab_size}
    heads = {name: text[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim")}
    sizes = {name: text[name] for name in ("vocab_size", "hidden_size", "intermediate_size", "rms_norm_eps")}
    rope = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [6, 5, 5]}
    config = Qwen3VLConfig(
        text_config={
            **heads, **sizes, "num_hidden_layers": layers, "max_position_embeddings": 512,
            "pad_token_id": text["pad_token_id"], "tie_word_embeddings": True,
            "rope_parameters": {**rope, "rope_theta": text["rope_parameters"]["rope_theta"]},
        },
        vision_config={
            "depth": 1, "hidden_size": 32, "num_heads": 1, "intermediate_size": 32, "out_hidden_size": WIDTH,
            "patch_size": 16, "num_position_embeddings": 16, "deepstack_visual_indexes": [],
        },
        tie_word_embeddings=True,
    )  # fmt: skip
    encoder = Qwen3VLForConditionalGeneration(config).eval().requires_grad_(False)
    weights = klein_weights(klein, encoder.state_dict(), LANGUAGE)
    embeddings = weights.pop(f"{LANGUAGE}embed_tokens.weight")
    with torch.no_grad():
        encoder.get_input_embeddings().weight[: len(embeddings)] = embeddings
    make_identity(encoder.model.language_model)
    encoder.load_state_dict(weights, strict=False)
    return encoder


def processor_of(klein: Any) -> Qwen3VLProcessor:
    """A processor of Qwen3-VL with the klein's tokenizer, to which the tokens of images are added."""
    tokenizer = deepcopy(klein)
    tokenizer.add_special_tokens({"additional_special_tokens": [START, END, *IMAGE_TOKENS]})
    tokenizer.chat_template = CHAT_TEMPLATE
    low, high = distinct_limits(64**2, 64**2)
    sizes = {"size": {"shortest_edge": low, "longest_edge": high}, "patch_size": 16}
    return Qwen3VLProcessor(
        Qwen2VLImageProcessor(**sizes), tokenizer, Qwen3VLVideoProcessor(**sizes), chat_template=CHAT_TEMPLATE
    )
