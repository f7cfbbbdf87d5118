"""FLUX's layers as Black Forest Labs, ComfyUI, kohya's sd-scripts and XLabs call them, beside diffusers' names.

Queries, keys and values are one layer there (``qkv``; with the MLP's first layer ``linear1``), so that one B holds the
rows of several layers here. diffusers converts the same names (``diffusers.loaders.lora_conversion_utils``), and drops
what it has no place for.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from paco_core.adapters.names import Rows, Vocabulary, linears

_IMAGE, _TEXT = ("to_q", "to_k", "to_v"), ("add_q_proj", "add_k_proj", "add_v_proj")
#: Block of the original -> block of diffusers, and its layers: original -> those of diffusers, one after another.
BLOCKS: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {
    ("double_blocks", "transformer_blocks"): {
        "img_attn.qkv": tuple(f"attn.{name}" for name in _IMAGE),
        "img_attn.proj": ("attn.to_out.0",),
        "img_mlp.0": ("ff.net.0.proj",),
        "img_mlp.2": ("ff.net.2",),
        "img_mod.lin": ("norm1.linear",),
        "txt_attn.qkv": tuple(f"attn.{name}" for name in _TEXT),
        "txt_attn.proj": ("attn.to_add_out",),
        "txt_mlp.0": ("ff_context.net.0.proj",),
        "txt_mlp.2": ("ff_context.net.2",),
        "txt_mod.lin": ("norm1_context.linear",),
        # XLabs, by the attention's processor:
        "qkv_lora1": tuple(f"attn.{name}" for name in _IMAGE),
        "proj_lora1": ("attn.to_out.0",),
        "qkv_lora2": tuple(f"attn.{name}" for name in _TEXT),
        "proj_lora2": ("attn.to_add_out",),
    },
    ("single_blocks", "single_transformer_blocks"): {
        "linear1": (*(f"attn.{name}" for name in _IMAGE), "proj_mlp"),
        "linear2": ("proj_out",),
        "modulation.lin": ("norm.linear",),
        "qkv": tuple(f"attn.{name}" for name in _IMAGE),
        "proj": ("proj_out",),
    },
}
REST = {
    "img_in": "x_embedder",
    "txt_in": "context_embedder",
    "time_in.in_layer": "time_text_embed.timestep_embedder.linear_1",
    "time_in.out_layer": "time_text_embed.timestep_embedder.linear_2",
    "vector_in.in_layer": "time_text_embed.text_embedder.linear_1",
    "vector_in.out_layer": "time_text_embed.text_embedder.linear_2",
    "guidance_in.in_layer": "time_text_embed.guidance_embedder.linear_1",
    "guidance_in.out_layer": "time_text_embed.guidance_embedder.linear_2",
    "final_layer.linear": "proj_out",
}
MODULATION = ("final_layer.adaLN_modulation.1", "norm_out.linear")  # shift and scale stand the other way round


def original_names(transformer: torch.nn.Module) -> Vocabulary:
    """The layers of diffusers' FLUX by their original names."""
    sizes = {name: layer.out_features for name, layer in linears(transformer).items()}
    original, name = MODULATION
    half = sizes[name] // 2
    return {**places(transformer, BLOCKS, REST), original: {name: [slice(half, None), slice(0, half)]}}


def places(
    transformer: torch.nn.Module,
    blocks: Mapping[tuple[str, str], Mapping[str, tuple[str, ...]]],
    rest: Mapping[str, str],
) -> dict[str, Rows]:
    """Which layers and rows the original names mean, by tables such as :data:`BLOCKS` and :data:`REST`."""
    sizes = {name: layer.out_features for name, layer in linears(transformer).items()}
    found: dict[str, Rows] = {}
    for (theirs, ours), layers in blocks.items():
        numbers = {name.split(".")[1] for name in sizes if name.startswith(f"{ours}.")}
        for number in numbers:
            for original, names in layers.items():
                found[f"{theirs}.{number}.{original}"] = _stacked([f"{ours}.{number}.{name}" for name in names], sizes)
    for original, name in rest.items():
        if name in sizes:
            found[original] = _stacked([name], sizes)
    return found


def _stacked(names: list[str], sizes: dict[str, int]) -> Rows:
    rows: dict[str, list[slice]] = {}
    start = 0
    for name in names:
        rows[name] = [slice(start, start + sizes[name])]
        start += sizes[name]
    return rows
