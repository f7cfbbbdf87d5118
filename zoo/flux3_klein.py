"""The small FLUX 3 Klein: a modular pipeline that generates storybook sets at 64 and 128 px.

Only its transformer is trained. Its autoencoder is that of the small FLUX.2 [klein]. Its text encoder is a Qwen3-VL
whose language model has the trained layers of the small klein's text encoder. Later layers return their input. The
scheduler is the default of the pipeline.

Its weights are not in git: they do not fit into the 75 MB of all models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import (
    Flux2KleinPipeline,
    Flux3ModularPipeline,
    Flux3Transformer2DModel,
)
from diffusers.modular_pipelines.flux3.before_denoise import Flux3TextRoPEInputsStep, _prepare_image_ids

from paco_core.models.modular import build_modular
from paco_core.policies.flux3_klein import IMAGE_ROPE_SCALE
from paco_core.policies.flux3_parts import LAYERS
from zoo.fitting import Log, fit_pipeline
from zoo.flux import LatentPool
from zoo.flux2_klein import encode
from zoo.klein_reader import PAINT_LENGTH, WIDTH, last_states, tokenise
from zoo.qwen3_vl_text import processor_of, text_encoder_of
from zoo.set_batches import SCHEDULE, SIZES, SetBatch, is_hidden


def new_transformer() -> Flux3Transformer2DModel:
    """An untrained transformer of 2.4 M parameters."""
    return Flux3Transformer2DModel(
        in_channels=64, cond_in_channels=64, num_layers=1, num_single_layers=5, attention_head_dim=32,
        num_attention_heads=4, joint_attention_dim=len(LAYERS) * WIDTH, timestep_channels=128,
        axes_dims_rope=(8, 8, 8, 8),
    )  # fmt: skip


def prompt_embeds(klein: Any, tokenizer: Any, prompts: list[str]) -> torch.Tensor:
    """Embeddings (prompts, PAINT_LENGTH, 8 * WIDTH), as the pipeline computes them: all eight layers are equal."""
    tokens = tokenise(tokenizer, prompts, PAINT_LENGTH)
    position_ids = torch.arange(PAINT_LENGTH)[None].masked_fill(tokens.attention_mask == 0, 1)
    with torch.no_grad():
        last, normed = last_states(klein, tokens.input_ids, tokens.attention_mask, position_ids)
    return torch.cat([last] * (len(LAYERS) - 1) + [normed], dim=-1)


def flow_loss(transformer: Any, klein: Any, tokenizer: Any, pool: LatentPool, step: int) -> torch.Tensor:
    """Scalar: squared error of the velocity of a batch of grids of one size."""
    batch = SetBatch.at_step(pool, step)
    texts = prompt_embeds(klein, tokenizer, batch.prompts)
    velocity = transformer(
        hidden_states=batch.noisy.flatten(2).transpose(1, 2),
        encoder_hidden_states=texts,
        timestep=batch.sigma,
        img_ids=_prepare_image_ids(*batch.noisy.shape[2:], IMAGE_ROPE_SCALE),
        txt_ids=Flux3TextRoPEInputsStep._prepare_text_ids(texts),
        return_dict=False,
    )[0]
    loss: torch.Tensor = (velocity - batch.velocity.flatten(2).transpose(1, 2)).square().mean()
    return loss


def build(work: Path, out: Path, klein: Path, log: Log = print) -> None:
    """Train (or resume) the small FLUX 3 Klein with parts of the klein in this folder, and save it to ``out``."""
    parts = Flux2KleinPipeline.from_pretrained(klein, transformer=None)
    tokenizer, reader, vae = parts.tokenizer, parts.text_encoder, parts.vae.eval()
    pool = LatentPool.build(lambda pixels: encode(vae, pixels), list(SIZES), work / "latents.safetensors", log)
    torch.manual_seed(0)
    transformer, processor = new_transformer(), processor_of(tokenizer)
    encoder = text_encoder_of(reader, len(processor.tokenizer), layers=max(LAYERS))
    log(f"flux3_klein: transformer of {sum(w.numel() for w in transformer.parameters()) / 1e6:.2f} M parameters")

    fit_pipeline(
        transformer,
        lambda step: flow_loss(transformer, reader, tokenizer, pool, step),
        SCHEDULE,
        work,
        out,
        log,
        hidden=is_hidden,
        pipeline=lambda: build_modular(
            Flux3ModularPipeline,
            {
                "vae": vae,
                "text_encoder": encoder,
                "tokenizer": processor,
                "transformer": transformer,
            },
        ),
    )
