"""The small Z-Image: a ZImagePipeline that generates storybook sets at 64 and 128 px.

Only its transformer is trained. Its autoencoder is that of the small FLUX. Its text encoder is that of the small
FLUX.2 [klein] with one layer after the trained ones. The pipeline reads the second to last hidden state.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    ZImagePipeline,
    ZImageTransformer2DModel,
)
from transformers import Qwen3Config, Qwen3Model

from zoo.fitting import Log, fit_pipeline
from zoo.flux import LatentPool, encode
from zoo.klein_reader import PAINT_LENGTH, TRAINED, WIDTH, tokenise
from zoo.set_batches import SCHEDULE, SHIFT, SIZES, SetBatch, is_hidden, klein_weights


def new_transformer() -> ZImageTransformer2DModel:
    """An untrained transformer of 2.2 M parameters."""
    return ZImageTransformer2DModel(
        in_channels=16, dim=128, n_layers=5, n_refiner_layers=1, n_heads=4, n_kv_heads=4, cap_feat_dim=WIDTH,
        axes_dims=[8, 12, 12], axes_lens=[256, 32, 32],
    )  # fmt: skip


def text_encoder_of(klein: Any) -> Qwen3Model:
    """The trained layers of the small klein's text encoder, and one identity layer."""
    config = klein.config.to_dict() | {"num_hidden_layers": TRAINED + 1}
    config["layer_types"] = config["layer_types"][: TRAINED + 1]
    encoder = Qwen3Model(Qwen3Config(**config)).eval().requires_grad_(False)
    encoder.load_state_dict(klein_weights(klein, encoder.state_dict()))
    return encoder


def prompt_embeds(encoder: Any, tokenizer: Any, prompts: list[str]) -> list[torch.Tensor]:
    """Embeddings (tokens, WIDTH) of each prompt, without padding, as the pipeline computes them."""
    tokens = tokenise(tokenizer, prompts, PAINT_LENGTH)
    with torch.no_grad():
        states = encoder(tokens.input_ids, attention_mask=tokens.attention_mask, output_hidden_states=True)
    rows = zip(states.hidden_states[-2], tokens.attention_mask.bool(), strict=True)
    return [row[mask] for row, mask in rows]


def flow_loss(transformer: Any, encoder: Any, tokenizer: Any, pool: LatentPool, step: int) -> torch.Tensor:
    """Scalar: squared error of the velocity. The transformer reads ``1 - sigma`` and predicts the negative velocity."""
    batch = SetBatch.at_step(pool, step)
    texts = prompt_embeds(encoder, tokenizer, batch.prompts)
    maps = transformer(list(batch.noisy.unsqueeze(2)), 1 - batch.sigma, texts, return_dict=False)[0]
    loss: torch.Tensor = (torch.stack(list(maps)).squeeze(2) + batch.velocity).square().mean()
    return loss


def build(work: Path, out: Path, flux: Path, klein: Path, log: Log = print) -> None:
    """Train (or resume) the small Z-Image with parts of the FLUX and the klein in these folders; save it to ``out``."""
    vae = AutoencoderKL.from_pretrained(flux / "vae").eval()
    reader = Flux2KleinPipeline.from_pretrained(klein, transformer=None, vae=None)
    tokenizer, encoder = reader.tokenizer, text_encoder_of(reader.text_encoder)
    pool = LatentPool.build(lambda pixels: encode(vae, pixels), list(SIZES), work / "latents.safetensors", log)
    torch.manual_seed(0)
    transformer = new_transformer()
    log(f"z_image: transformer of {sum(weight.numel() for weight in transformer.parameters()) / 1e6:.2f} M parameters")

    fit_pipeline(
        transformer,
        lambda step: flow_loss(transformer, encoder, tokenizer, pool, step),
        SCHEDULE,
        work,
        out,
        log,
        hidden=is_hidden,
        pipeline=lambda: ZImagePipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=SHIFT),
            vae=vae,
            text_encoder=encoder,
            tokenizer=tokenizer,
            transformer=transformer,
        ),
    )
