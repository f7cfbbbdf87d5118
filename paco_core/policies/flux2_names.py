"""FLUX.2's layers as Black Forest Labs, ComfyUI and ai-toolkit call them, beside diffusers' names.

As in :mod:`.flux_names`, but a single block's first layer is one here too, and modulation is shared by all blocks.
"""

from __future__ import annotations

import torch

from paco_core.adapters.names import Vocabulary
from paco_core.policies.flux_names import places

_IMAGE, _TEXT = ("to_q", "to_k", "to_v"), ("add_q_proj", "add_k_proj", "add_v_proj")
BLOCKS: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {
    ("double_blocks", "transformer_blocks"): {
        "img_attn.qkv": tuple(f"attn.{name}" for name in _IMAGE),
        "img_attn.proj": ("attn.to_out.0",),
        "img_mlp.0": ("ff.linear_in",),
        "img_mlp.2": ("ff.linear_out",),
        "txt_attn.qkv": tuple(f"attn.{name}" for name in _TEXT),
        "txt_attn.proj": ("attn.to_add_out",),
        "txt_mlp.0": ("ff_context.linear_in",),
        "txt_mlp.2": ("ff_context.linear_out",),
    },
    ("single_blocks", "single_transformer_blocks"): {
        "linear1": ("attn.to_qkv_mlp_proj",),
        "linear2": ("attn.to_out",),
    },
}
REST = {
    "img_in": "x_embedder",
    "txt_in": "context_embedder",
    "time_in.in_layer": "time_guidance_embed.timestep_embedder.linear_1",
    "time_in.out_layer": "time_guidance_embed.timestep_embedder.linear_2",
    "final_layer.linear": "proj_out",
    "single_stream_modulation.lin": "single_stream_modulation.linear",
    "double_stream_modulation_img.lin": "double_stream_modulation_img.linear",
    "double_stream_modulation_txt.lin": "double_stream_modulation_txt.linear",
}


def original_names(transformer: torch.nn.Module) -> Vocabulary:
    """The layers of diffusers' FLUX.2 by their original names."""
    return places(transformer, BLOCKS, REST)
