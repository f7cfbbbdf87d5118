"""A complete Qwen3-VL folder with random weights, for tests.

The tokenizer is that of :mod:`tests.support.tiny_vlm`. As in Qwen3-VL-4B, the LM head shares the weights of the
embeddings, and the attention heads together are wider than the hidden states.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.tiny_vlm import SENTENCES

PATCH = 16
SIDE = 64  # pixels of an image by default


def build(folder: Path, *, seed: int = 0, tied: bool = True, layers: int = 3) -> Path:
    """Write the model, tokenizer and processor to ``folder`` and return it.

    Args:
        tied: whether the LM head has the weights of the embeddings.
        layers: of the language model.
    """
    import torch
    from transformers import (
        Qwen2VLImageProcessor,
        Qwen3VLConfig,
        Qwen3VLForConditionalGeneration,
        Qwen3VLProcessor,
        Qwen3VLVideoProcessor,
    )

    from zoo.vlm import CHAT_TEMPLATE, build_tokenizer

    tokenizer = build_tokenizer(SENTENCES)

    def token(text: str) -> int:
        return int(tokenizer.convert_tokens_to_ids(text))

    config = Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 2048,
            "rope_parameters": {
                "rope_type": "default", "mrope_interleaved": True, "mrope_section": [6, 5, 5], "rope_theta": 1e6
            },
            "bos_token_id": token("<|endoftext|>"),
            "eos_token_id": token("<|im_end|>"),
            "initializer_range": 0.2,
            "tie_word_embeddings": tied,
        },
        vision_config={
            "depth": 3,
            "hidden_size": 64,
            "num_heads": 2,
            "intermediate_size": 64,
            "out_hidden_size": 32,
            "patch_size": PATCH,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0, 1],
            "initializer_range": 0.2,
        },
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=tied,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3VLForConditionalGeneration(config)
    pixels = {"size": {"shortest_edge": SIDE**2, "longest_edge": SIDE**2}, "patch_size": PATCH}
    normalized = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    processor = Qwen3VLProcessor(
        Qwen2VLImageProcessor(**pixels, **normalized),
        tokenizer,
        Qwen3VLVideoProcessor(**pixels, **normalized),
        chat_template=CHAT_TEMPLATE,
    )
    for part in (model, tokenizer, processor):
        part.save_pretrained(folder)
    return folder
