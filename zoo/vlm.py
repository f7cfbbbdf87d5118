"""The zoo's Qwen2.5-VL: its architecture, tokenizer, processor and folder. The zoo's Qwen3-VL shares the last three.

Small in width, ordinary in kind: `Qwen2_5_VLForConditionalGeneration` and `AutoProcessor` load the
folder as they load the released checkpoints. A panel is 56 x 56 px and costs four visual tokens.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.nn import functional
from transformers import (
    GenerationConfig,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2Tokenizer,
    Qwen2VLImageProcessor,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
)
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from paco_core.io.atomic import atomic
from paco_core.io.files import write_json, write_text
from paco_core.reward_model.network import distinct_limits
from zoo.text import learn_byte_pairs

if TYPE_CHECKING:
    from transformers import ProcessorMixin

VisionLanguageModel: TypeAlias = "Qwen2_5_VLForConditionalGeneration | Qwen3VLForConditionalGeneration"
PROCESSORS = {"qwen2_5_vl": Qwen2_5_VLProcessor, "qwen3_vl": Qwen3VLProcessor}  # by model type

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


def token_id(tokenizer: Qwen2Tokenizer, token: str) -> int:
    """Number of a token."""
    return int(tokenizer.convert_tokens_to_ids(token))  # type: ignore[arg-type]


def text_config(tokenizer: Qwen2Tokenizer) -> dict[str, Any]:
    """Sizes of the language model."""
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 160,
        "intermediate_size": 432,
        "num_hidden_layers": 4,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 1e6},
        "bos_token_id": token_id(tokenizer, "<|endoftext|>"),
        "eos_token_id": token_id(tokenizer, "<|im_end|>"),
        "pad_token_id": token_id(tokenizer, "<|endoftext|>"),
        "initializer_range": 0.04,
    }


def vision_token_ids(tokenizer: Qwen2Tokenizer) -> dict[str, int]:
    """Numbers of the tokens of images and videos, by the keys of config.json."""
    return {
        "image_token_id": token_id(tokenizer, "<|image_pad|>"),
        "video_token_id": token_id(tokenizer, "<|video_pad|>"),
        "vision_start_token_id": token_id(tokenizer, "<|vision_start|>"),
        "vision_end_token_id": token_id(tokenizer, "<|vision_end|>"),
    }


def build_model(tokenizer: Qwen2Tokenizer, seed: int) -> Qwen2_5_VLForConditionalGeneration:
    """A fresh network of about 2.7 M parameters: language 4 x 160, vision 4 x 128."""
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
        text_config=text_config(tokenizer),
        vision_config=vision,
        tie_word_embeddings=False,
        **vision_token_ids(tokenizer),
    )
    torch.manual_seed(seed)
    return Qwen2_5_VLForConditionalGeneration(config)


def build_processor(tokenizer: Qwen2Tokenizer, processor_class: type[ProcessorMixin]) -> Any:
    """Processor of a Qwen-VL that resizes every image to one panel of 56 x 56 px."""
    low, high = distinct_limits(PANEL_SIDE**2, PANEL_SIDE**2)
    pixels = {"shortest_edge": low, "longest_edge": high}
    tokenizer.chat_template = CHAT_TEMPLATE
    return processor_class(
        image_processor=Qwen2VLImageProcessor(size=pixels, patch_size=PATCH),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(size=pixels, patch_size=PATCH),
        chat_template=CHAT_TEMPLATE,
    )


def export(model: VisionLanguageModel, tokenizer: Qwen2Tokenizer, folder: Path) -> None:
    """Write weights, configs, tokenizer, chat template and processor to ``folder`` atomically."""
    processor = build_processor(tokenizer, PROCESSORS[model.config.model_type])
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
    """Run the vision tower on panels of one size: (n, 16, 1176) -> (n, 4, features).

    The features of a Qwen2.5-VL are the merged output (hidden). Those of a Qwen3-VL are the merged output and then each
    level of deepstack features, as in :mod:`paco_core.reward_model.architectures`.

    The library runs attention image by image, which costs more than the arithmetic of such a small tower. With equal
    sizes and one window per image, all images are one batch. The result is the same.
    """
    tower: Any = visual
    count = len(patches)
    embed = tower.patch_embed.proj
    hidden = functional.linear(patches, embed.weight.flatten(1), embed.bias)
    units = torch.arange(2, device=patches.device)
    # Rows and columns in the order of `patchify`: merge groups of 2 x 2 first, then places within a group.
    group_row, group_column, row, column = torch.meshgrid(units, units, units, units, indexing="ij")
    places = torch.stack([(2 * group_row + row).flatten(), (2 * group_column + column).flatten()], dim=1)
    cosine, sine = tower.rotary_pos_emb(hidden, places)
    mergers = {len(tower.blocks) - 1: tower.merger}
    if isinstance(tower, Qwen3VLVisionModel):  # its table of positions has one row per patch of a panel
        hidden = hidden + tower.pos_embed(places[:, 0] * tower.num_grid_per_side + places[:, 1])
        mergers |= dict(zip(tower.deepstack_visual_indexes, tower.deepstack_merger_list, strict=True))
    features: dict[int, torch.Tensor] = {}
    for number, block in enumerate(tower.blocks):
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
        if number in mergers:
            features[number] = mergers[number](hidden).reshape(count, TOKENS_PER_PANEL, -1)
    return torch.cat([features[number] for number in mergers], dim=-1)
