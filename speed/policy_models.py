"""Policies of random weights at the sizes of the public models, or at those of a folder's configurations.

Time and memory do not depend on the values of the weights, so nothing has to be downloaded.
"""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import diffusers
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from paco_core.config.params import PolicyRecipe
from paco_core.io.precision import weights_format
from paco_core.planning.footprint import Architecture
from paco_core.policies.base import Size, sized
from paco_core.policies.encoded import Encoded, shapes_of
from paco_core.policies.families import family_of
from paco_core.policies.pipeline_policy import PipelinePolicy

#: From the models' own configurations.
FLUX: dict[str, Any] = {
    "in_channels": 64, "num_layers": 19, "num_single_layers": 38, "num_attention_heads": 24, "attention_head_dim": 128,
    "joint_attention_dim": 4096, "pooled_projection_dim": 768, "guidance_embeds": True, "axes_dims_rope": (16, 56, 56),
}  # fmt: skip
QWEN: dict[str, Any] = {
    "in_channels": 64, "out_channels": 16, "num_layers": 60, "num_attention_heads": 24, "attention_head_dim": 128,
    "joint_attention_dim": 3584, "guidance_embeds": False,
}  # fmt: skip
FLUX_VAE: dict[str, Any] = {
    "latent_channels": 16, "block_out_channels": (128, 256, 512, 512), "layers_per_block": 2, "use_quant_conv": False,
    "down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4,
    "use_post_quant_conv": False, "scaling_factor": 0.3611, "shift_factor": 0.1159,
}  # fmt: skip
FLUX2: dict[str, Any] = {
    "in_channels": 128, "num_layers": 5, "num_single_layers": 20, "num_attention_heads": 24, "attention_head_dim": 128,
    "joint_attention_dim": 7680, "guidance_embeds": False,
}  # fmt: skip
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "FluxTransformer2DModel": (FLUX, FLUX_VAE),
    "QwenImageTransformer2DModel": (QWEN, {}),
    "Flux2Transformer2DModel": (FLUX2, {}),
}
VAES = {
    "FluxTransformer2DModel": "AutoencoderKL",
    "QwenImageTransformer2DModel": "AutoencoderKLQwenImage",
    "Flux2Transformer2DModel": "AutoencoderKLFlux2",
}


def bare(recipe: PolicyRecipe, found: Architecture, device: str, root: Path) -> PipelinePolicy:
    """A policy as it is loaded, drawn on ``device`` ("meta": without contents), without text encoders."""
    known, folder = family_of(recipe.family), root / recipe.model
    transformer, vae = getattr(diffusers, found.kind), getattr(diffusers, VAES[found.kind])
    settings = PUBLISHED[found.kind]
    if folder.is_dir():
        settings = transformer.load_config(folder / "transformer"), vae.load_config(folder / "vae")
    before = torch.get_default_dtype()
    torch.set_default_dtype(weights_format(recipe.dtype))
    try:
        torch.manual_seed(0)
        with torch.device(device):
            parts = {"transformer": transformer.from_config(settings[0]), "vae": vae.from_config(settings[1])}
    finally:
        torch.set_default_dtype(before)
    parts["scheduler"] = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    kind = getattr(diffusers, known.pipeline)
    given = inspect.signature(kind.__init__).parameters.values()
    none = {one.name: None for one in given if one.name != "self" and one.default is inspect.Parameter.empty}
    policy: PipelinePolicy = known.load_class()(
        kind(**{**none, **parts}), "cpu" if device == "meta" else device, task=recipe.task
    )
    policy.dtype = recipe.dtype
    return policy


def build(recipe: PolicyRecipe, found: Architecture, device: str, root: Path) -> PipelinePolicy:
    """The same with its adapter, as it is trained."""
    policy = bare(recipe, found, device, root)
    policy.add_adapter(recipe.lora, 0)
    policy.enable_gradient_checkpointing()
    policy.transformer.train()  # diffusers checkpoints in training only
    return policy


def encoded(
    policy: PipelinePolicy, recipe: PolicyRecipe, found: Architecture, size: Size, references: int | None = None
) -> Encoded:
    """One prompt at its longest for pictures of ``size``, with reference pictures: random values.

    Args:
        references: how many, each as large as the picture or of ``reference_size``; None = one of an edit.
    """
    config, dtype = policy.transformer.config, policy.transformer.dtype
    count = int(policy.edits) if references is None else references
    _, words = found.tokens(recipe, round(math.sqrt(math.prod(size))), count)
    text = torch.randn(words, config.joint_attention_dim).to(dtype)
    if found.kind == "FluxTransformer2DModel":
        row = {"text": text, "pooled": torch.randn(config.pooled_projection_dim).to(dtype)}
    elif not policy.known.references[0]:  # it reads words alone
        row = {"text": text, "negative": text.clone()}
    else:
        row = {sized("text", size): text, sized("negative", size): text.clone()}
    if count:
        seen = size if recipe.reference_size is None else (recipe.reference_size,) * 2
        high, wide = (side // found.patch for side in seen)
        row[sized("reference", size)] = torch.randn(count * high * wide, found.channels).to(dtype)
        with unset_fake_temporarily():
            row[shapes_of(sized("reference", size))] = torch.tensor([[high, wide]] * count)
    return Encoded([row], policy.device)
