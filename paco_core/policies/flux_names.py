"""Original names of the layers of FLUX.1 and FLUX.2: those of Black Forest Labs, ComfyUI, kohya and XLabs.

One original layer can contain several layers of diffusers, one after another: then each of them has its rows of B.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from paco_core.adapters.names import Rows, Vocabulary, linears

DOUBLE, SINGLE = "transformer_blocks.{}.", "single_transformer_blocks.{}."
IMAGE = tuple(f"{DOUBLE}attn.to_{side}" for side in "qkv")
TEXT = tuple(f"{DOUBLE}attn.add_{side}_proj" for side in "qkv")
SINGLE_QKV = tuple(f"{SINGLE}attn.to_{side}" for side in "qkv")
Table = Mapping[str, tuple[str, ...]]  # an original name -> those of diffusers, with {} for the number of the block

SHARED: Table = {
    "double_blocks.{}.img_attn.qkv": IMAGE,
    "double_blocks.{}.img_attn.proj": (f"{DOUBLE}attn.to_out.0",),
    "double_blocks.{}.txt_attn.qkv": TEXT,
    "double_blocks.{}.txt_attn.proj": (f"{DOUBLE}attn.to_add_out",),
    "img_in": ("x_embedder",),
    "txt_in": ("context_embedder",),
    "final_layer.linear": ("proj_out",),
}
FLUX: Table = {
    **SHARED,
    "double_blocks.{}.img_mlp.0": (f"{DOUBLE}ff.net.0.proj",),
    "double_blocks.{}.img_mlp.2": (f"{DOUBLE}ff.net.2",),
    "double_blocks.{}.img_mod.lin": (f"{DOUBLE}norm1.linear",),
    "double_blocks.{}.txt_mlp.0": (f"{DOUBLE}ff_context.net.0.proj",),
    "double_blocks.{}.txt_mlp.2": (f"{DOUBLE}ff_context.net.2",),
    "double_blocks.{}.txt_mod.lin": (f"{DOUBLE}norm1_context.linear",),
    "single_blocks.{}.linear1": (*SINGLE_QKV, f"{SINGLE}proj_mlp"),
    "single_blocks.{}.linear2": (f"{SINGLE}proj_out",),
    "single_blocks.{}.modulation.lin": (f"{SINGLE}norm.linear",),
    "time_in.in_layer": ("time_text_embed.timestep_embedder.linear_1",),
    "time_in.out_layer": ("time_text_embed.timestep_embedder.linear_2",),
    "vector_in.in_layer": ("time_text_embed.text_embedder.linear_1",),
    "vector_in.out_layer": ("time_text_embed.text_embedder.linear_2",),
    "guidance_in.in_layer": ("time_text_embed.guidance_embedder.linear_1",),
    "guidance_in.out_layer": ("time_text_embed.guidance_embedder.linear_2",),
    # XLabs:
    "double_blocks.{}.qkv_lora1": IMAGE,
    "double_blocks.{}.proj_lora1": (f"{DOUBLE}attn.to_out.0",),
    "double_blocks.{}.qkv_lora2": TEXT,
    "double_blocks.{}.proj_lora2": (f"{DOUBLE}attn.to_add_out",),
    "single_blocks.{}.qkv": SINGLE_QKV,
    "single_blocks.{}.proj": (f"{SINGLE}proj_out",),
}
FLUX2: Table = {
    **SHARED,
    "double_blocks.{}.img_mlp.0": (f"{DOUBLE}ff.linear_in",),
    "double_blocks.{}.img_mlp.2": (f"{DOUBLE}ff.linear_out",),
    "double_blocks.{}.txt_mlp.0": (f"{DOUBLE}ff_context.linear_in",),
    "double_blocks.{}.txt_mlp.2": (f"{DOUBLE}ff_context.linear_out",),
    "single_blocks.{}.linear1": (f"{SINGLE}attn.to_qkv_mlp_proj",),
    "single_blocks.{}.linear2": (f"{SINGLE}attn.to_out",),
    "time_in.in_layer": ("time_guidance_embed.timestep_embedder.linear_1",),
    "time_in.out_layer": ("time_guidance_embed.timestep_embedder.linear_2",),
    "single_stream_modulation.lin": ("single_stream_modulation.linear",),
    "double_stream_modulation_img.lin": ("double_stream_modulation_img.linear",),
    "double_stream_modulation_txt.lin": ("double_stream_modulation_txt.linear",),
}
#: Blocks of FLUX.3 by the original name of their list. Each kind of tokens has separate blocks before those for all.
FLUX3_BLOCKS = {
    "content_mode_blocks.image": "mode_blocks.image",
    "content_mode_blocks.image_cond": "mode_blocks.image_cond",
    "txt_mode_blocks": "txt_mode_blocks",
    "single_blocks": "single_transformer_blocks",
}
FLUX3_LAYERS = {
    **{f"{side}_proj": f"attn.to_{side}" for side in "qkv"},
    "attn_out": "attn.to_out.0",
    "mlp_in": "ff.linear_in",
    "mlp_out": "ff.linear_out",
}
FLUX3: Table = {
    **{
        f"{original}.{{}}.{layer}": (f"{blocks}.{{}}.{name}",)
        for original, blocks in FLUX3_BLOCKS.items()
        for layer, name in FLUX3_LAYERS.items()
    },
    "emb_in.image": ("x_embedders.image",),
    "emb_in.image_cond": ("x_embedders.image_cond",),
    "txt_in": ("context_embedder",),
    "final_layer.image.linear": ("proj_out",),
    "time_in.in_layer": ("timestep_embedder.linear_1",),
    "time_in.out_layer": ("timestep_embedder.linear_2",),
}


def flux_names(transformer: torch.nn.Module) -> Vocabulary:
    """The layers of FLUX.1 by their original names."""
    half = linears(transformer)["norm_out.linear"].out_features // 2
    shift_and_scale = {"norm_out.linear": [slice(half, None), slice(0, half)]}  # in diffusers the scale comes first
    return {**original_names(transformer, FLUX), "final_layer.adaLN_modulation.1": shift_and_scale}


def original_names(transformer: torch.nn.Module, table: Table) -> Vocabulary:
    """The layers by the names of a table such as :data:`FLUX`; names of layers that the model lacks are left out."""
    sizes = {name: layer.out_features for name, layer in linears(transformer).items()}
    blocks = max(len(child) for child in transformer.children() if isinstance(child, torch.nn.ModuleList))
    vocabulary: dict[str, Rows] = {}
    for original, layers in table.items():
        for number in range(blocks):
            names = [layer.format(number) for layer in layers]
            if all(name in sizes for name in names):
                vocabulary[original.format(number)] = _consecutive(names, sizes)
    return vocabulary


def _consecutive(names: list[str], sizes: Mapping[str, int]) -> Rows:
    rows, start = {}, 0
    for name in names:
        rows[name] = [slice(start, start + sizes[name])]
        start += sizes[name]
    return rows
