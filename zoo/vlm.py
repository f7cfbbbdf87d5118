"""The zoo's Qwen2.5-VL: its architecture, tokenizer, processor and folder.

Small in width, ordinary in kind: `Qwen2_5_VLForConditionalGeneration` and `AutoProcessor` load the
folder as they load the released checkpoints. A panel is 56 x 56 px and costs four visual tokens.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from transformers import (
    GenerationConfig,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2Tokenizer,
    Qwen2VLImageProcessor,
)
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

from paco_core.io.atomic import atomic
from paco_core.io.files import write_json, write_text
from paco_core.reward_model.network import distinct_limits
from zoo.text import learn_byte_pairs

if TYPE_CHECKING:
    from transformers import Qwen2VLProcessor

PANEL_SIDE = 56
PATCH = 14
PATCHES_PER_PANEL = (PANEL_SIDE // PATCH) ** 2
TOKENS_PER_PANEL = PATCHES_PER_PANEL // 4
MAX_VOCABULARY = 1_600

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)

#: Qwen2.5-VL's chat template, without a default system turn, to save tokens.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{% if message['content'] is string -%}
{{ message['content'] }}
{%- else -%}
{%- for content in message['content'] -%}
{%- if content['type'] == 'image' or 'image' in content or 'image_url' in content -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif content['type'] == 'video' or 'video' in content -%}
<|vision_start|><|video_pad|><|vision_end|>
{%- elif 'text' in content -%}
{{ content['text'] }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


def build_tokenizer(corpus: Iterable[str]) -> Qwen2Tokenizer:
    """Byte-level BPE with one token per word of ``corpus``; other text is split into bytes."""
    return tokenizer_of(*learn_byte_pairs(corpus, MAX_VOCABULARY - len(SPECIAL_TOKENS)))


def tokenizer_of(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Qwen2Tokenizer:
    """Qwen2's tokenizer over a vocabulary, the special tokens behind it."""
    return Qwen2Tokenizer(
        vocab=vocabulary,
        merges=merges,
        unk_token=SPECIAL_TOKENS[0],
        eos_token=SPECIAL_TOKENS[2],
        pad_token=SPECIAL_TOKENS[0],
        extra_special_tokens=list(SPECIAL_TOKENS[1:]),
        model_max_length=4096,
    )


def build_model(tokenizer: Qwen2Tokenizer, seed: int) -> Qwen2_5_VLForConditionalGeneration:
    """A fresh network of about 2.7 M parameters: language 4 x 160, vision 4 x 128."""

    def token(text: str) -> int:
        return int(tokenizer.convert_tokens_to_ids(text))

    text: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 160,
        "intermediate_size": 432,
        "num_hidden_layers": 4,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 1e6},
        "bos_token_id": token("<|endoftext|>"),
        "eos_token_id": token("<|im_end|>"),
        "pad_token_id": token("<|endoftext|>"),
        "initializer_range": 0.04,
    }
    vision: dict[str, Any] = {
        "depth": 4,
        "hidden_size": 128,
        "num_heads": 4,
        "intermediate_size": 320,
        "out_hidden_size": 160,
        "patch_size": PATCH,
        "window_size": 8 * PATCH,
        "fullatt_block_indexes": [1, 3],
        "initializer_range": 0.04,
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    return Qwen2_5_VLForConditionalGeneration(config)


def build_processor(
    tokenizer: Qwen2Tokenizer, kind: type[Qwen2VLProcessor] | None = None
) -> Qwen2_5_VLProcessor | Qwen2VLProcessor:
    """Processor that resizes every image to one panel of 56 x 56 px. ``kind`` is the class that a pipeline needs."""
    low, high = distinct_limits(PANEL_SIDE**2, PANEL_SIDE**2)
    pixels = {"shortest_edge": low, "longest_edge": high}
    tokenizer.chat_template = CHAT_TEMPLATE
    return (kind or Qwen2_5_VLProcessor)(
        image_processor=Qwen2VLImageProcessor(size=pixels, patch_size=PATCH),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(size=pixels, patch_size=PATCH),
        chat_template=CHAT_TEMPLATE,
    )


def export(model: Qwen2_5_VLForConditionalGeneration, tokenizer: Qwen2Tokenizer, folder: Path) -> None:
    """Write weights, configs, tokenizer, chat template and processor to ``folder`` atomically."""
    processor = build_processor(tokenizer)
    model.generation_config = GenerationConfig(
        do_sample=False,
        bos_token_id=model.config.text_config.bos_token_id,
        eos_token_id=model.config.text_config.eos_token_id,
        pad_token_id=model.config.text_config.pad_token_id,
    )
    notes = {name: folder / name for name in ("README.md", "card.json") if (folder / name).is_file()}
    with atomic(folder, replace=True) as part:
        model.save_pretrained(part)
        processor.save_pretrained(part)
        tokenizer.save_pretrained(part)
        write_text(part / "chat_template.jinja", CHAT_TEMPLATE)
        write_json(part / "preprocessor_config.json", processor.image_processor.to_dict())
        for name, path in notes.items():
            shutil.copy(path, part / name)


def patchify(pixels: torch.Tensor) -> torch.Tensor:
    """Patches of 56 px panels as in the processor: (n, 3, 56, 56) -> (n, 16, 1176), merge groups together."""
    count = len(pixels)
    grid = pixels.reshape(count, 3, 2, 2, PATCH, 2, 2, PATCH).permute(0, 2, 5, 3, 6, 1, 4, 7)
    doubled = grid.unsqueeze(6).expand(-1, -1, -1, -1, -1, -1, 2, -1, -1)
    return doubled.reshape(count, PATCHES_PER_PANEL, 3 * 2 * PATCH * PATCH)


def encode_panels(visual: torch.nn.Module, patches: torch.Tensor) -> torch.Tensor:
    """Run the vision tower on panels of one size: (n, 16, 1176) -> (n, 4, hidden).

    The library runs attention image by image, which costs more than the arithmetic of such a small tower. With equal
    sizes and one window per image, all images are one batch. The result is the same.
    """
    tower: Any = visual
    count = len(patches)
    hidden = functional.linear(patches, tower.patch_embed.proj.weight.flatten(1))
    units = torch.arange(2, device=patches.device)
    # Rows and columns in the order of `patchify`: merge groups of 2 x 2 first, then places within a group.
    group_row, group_column, row, column = torch.meshgrid(units, units, units, units, indexing="ij")
    places = torch.stack([(2 * group_row + row).flatten(), (2 * group_column + column).flatten()], dim=1)
    cosine, sine = tower.rotary_pos_emb(hidden, places)
    for block in tower.blocks:
        attention = block.attn
        mixed = attention.qkv(block.norm1(hidden)).reshape(count, PATCHES_PER_PANEL, 3, attention.num_heads, -1)
        query, key, value = mixed.unbind(2)
        query, key = apply_rotary_pos_emb_vision(query, key, cosine, sine)
        with torch.autocast(patches.device.type, enabled=False):
            heads = functional.scaled_dot_product_attention(
                *(part.transpose(1, 2).float() for part in (query, key, value)), scale=attention.scaling
            )
        hidden = hidden + attention.proj(heads.transpose(1, 2).flatten(2))
        hidden = hidden + block.mlp(block.norm2(hidden))
    merged: torch.Tensor = tower.merger(hidden)
    return merged.reshape(count, TOKENS_PER_PANEL, -1)
