"""A complete Qwen2.5-VL folder with random weights, for tests: loads as the released checkpoints do.

Built in about a second and 0.4 MB on disk; a 56 px panel costs four visual tokens, as in the zoo's model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

SENTENCES = (
    "Yes. The style is the same. The colour is the same: both show red.",
    "No. The animal differs: the first shows cat and the second shows frog.",
    "Given two subfigures generated based on the theme: do the two images maintain consistency in terms of "
    'style, logic and identity? Answer "Yes" and "No" first, and then provide detailed reasons.',
    "Do images meet the following criteria? Please answer Yes or No first, then provide detailed reasons.",
    "user\nassistant\nsystem\n",
)


def build(
    folder: Path, *, seed: int = 0, sentences: Sequence[str] = SENTENCES, layers: tuple[int, int] = (2, 2)
) -> Path:
    """Write the model, tokenizer and processor to ``folder`` and return it.

    Words of ``sentences`` are single tokens; without "Yes" and "No" among them the folder is no reward base.
    ``layers``: of the vision tower and of the language model.
    """
    import torch
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    from zoo.vlm import PANEL_SIDE, PATCH, build_tokenizer, export

    tokenizer = build_tokenizer(sentences)

    def token(text: str) -> int:
        return int(tokenizer.convert_tokens_to_ids(text))

    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": layers[1],
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 2048,
            "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e6},
            "bos_token_id": token("<|endoftext|>"),
            "eos_token_id": token("<|im_end|>"),
            "pad_token_id": token("<|endoftext|>"),
            "initializer_range": 0.2,
        },
        vision_config={
            "depth": layers[0],
            "hidden_size": 32,
            "num_heads": 2,
            "intermediate_size": 64,
            "out_hidden_size": 32,
            "patch_size": PATCH,
            "window_size": 2 * PANEL_SIDE,
            "fullatt_block_indexes": [1] if layers[0] < 8 else list(range(7, layers[0], 8)),
            "initializer_range": 0.2,
        },
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(config)
    export(model, tokenizer, folder)
    return folder
