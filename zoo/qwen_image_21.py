"""The small Qwen-Image-2.1: a QwenImage21Pipeline that generates storybook sets at 64 and 128 px.

Its autoencoder compresses 16 times into 64 channels and has an alpha channel, which is 1 for all drawings. Its text
encoder is a Qwen3-VL that starts with the trained layers of the small klein's text encoder. The pipeline reads the
state after the last layer. Transformer and text encoder are trained together.

Its weights are not in git: they do not fit into the 75 MB of all models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKLQwenImage21,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    QwenImage21Pipeline,
    QwenImage21Transformer2DModel,
)

from zoo import qwen_vae
from zoo.fitting import Log, Muon, Schedule, fit, fit_pipeline
from zoo.flux import LatentPool
from zoo.klein_reader import TRAINED, WIDTH
from zoo.qwen3_vl_text import processor_of, text_encoder_of
from zoo.set_batches import SCHEDULE, SHIFT, SIZES, SetBatch, is_hidden
from zoo.vae import as_grids, decoder_noise, kl_loss, panel_batch, pixel_loss, psnr_of

CHANNELS = 64
VAE_SCHEDULE = Schedule(steps=1500, learning_rate=2e-2, warmup=30, checkpoint_every=250)
VAE_BATCHES = ((32, 28), (64, 8), (64, 8))  # size of the panels in pixels, and panels per batch
#: Afterwards, only the decoder is trained, on 2x2 grids: else it mixes colors of neighboring panels.
DECODER_SCHEDULE = Schedule(steps=3000, learning_rate=1e-2, warmup=20, checkpoint_every=500)


def new_vae() -> AutoencoderKLQwenImage21:
    """An untrained autoencoder whose posterior starts narrow, because noise of unit variance would hide the colors."""
    vae = AutoencoderKLQwenImage21(
        base_dim=12, decoder_base_dim=16, z_dim=CHANNELS, dim_mult=[1, 2, 4, 4, 4], num_res_blocks=1,
        temperal_downsample=[False] * 4, latents_mean=[0.0] * CHANNELS, latents_std=[1.0] * CHANNELS,
    )  # fmt: skip
    with torch.no_grad():
        vae.quant_conv.bias[CHANNELS:] = -5.0
        vae.quant_conv.weight[CHANNELS:] *= 0.1
    return vae


def with_alpha(pixels: torch.Tensor) -> torch.Tensor:
    """Drawings (n, 3, s, s) as frames with an alpha channel (n, 4, 1, s, s)."""
    return torch.cat([pixels, torch.ones_like(pixels[:, :1])], dim=1).unsqueeze(2)


def reconstruction_loss(vae: Any, step: int) -> torch.Tensor:
    """Scalar loss on colors and alpha, and a small KL term (smooth latents), of one batch of panels of one size."""
    size, count = VAE_BATCHES[step % len(VAE_BATCHES)]
    pixels = panel_batch(size, count, seed=5 * 10**7 + step)
    posterior = vae.encode(with_alpha(pixels)).latent_dist
    decoded = vae.decode(posterior.sample(torch.Generator().manual_seed(step))).sample[:, :, 0]
    alpha = (decoded[:, 3] - 1).abs().mean()
    return pixel_loss(decoded[:, :3], pixels) + 0.1 * alpha + kl_loss(posterior)


def decoder_loss(vae: Any, step: int) -> torch.Tensor:
    """Scalar loss on the colors of a batch of 2x2 grids, without a graph through the encoder."""
    size, count = VAE_BATCHES[step % len(VAE_BATCHES)]
    pixels, generator = panel_batch(size, count, seed=6 * 10**7 + step), torch.Generator().manual_seed(step)
    with torch.no_grad():
        latents = vae.encode(with_alpha(pixels)).latent_dist.sample(generator)[:, :, 0]
        latents = latents + decoder_noise(latents.shape, generator) * latents.std()
    decoded = vae.decode(as_grids(latents).unsqueeze(2)).sample[:, :3, 0]
    return pixel_loss(decoded, as_grids(pixels))


def encode(vae: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Normalized latents (n, 64, s / 16, s / 16) of drawings."""
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (vae.config.latents_mean, vae.config.latents_std))
    latents: torch.Tensor = (vae.encode(with_alpha(pixels)).latent_dist.mode()[:, :, 0] - mean) / std
    return latents


def build_vae(work: Path, log: Log = print) -> AutoencoderKLQwenImage21:
    """Train (or resume) the autoencoder in ``work``. Latents have mean 0 and deviation 1 by its configuration."""
    torch.manual_seed(0)
    vae = new_vae()
    _phase(vae, reconstruction_loss, VAE_SCHEDULE, work, log)
    vae.encoder.requires_grad_(False)
    vae.quant_conv.requires_grad_(False)
    _phase(vae, decoder_loss, DECODER_SCHEDULE, work / "decoder", log)
    with torch.inference_mode():
        drawings = [with_alpha(panel_batch(size, 64, seed=10**6 + size)) for size in SIZES]
        mean, std = qwen_vae.channel_statistics([vae.encode(pixels).latent_dist.mode() for pixels in drawings])
    vae.register_to_config(latents_mean=mean, latents_std=std)
    return vae.eval()


def _phase(vae: Any, loss: Callable[[Any, int], torch.Tensor], schedule: Schedule, work: Path, log: Log) -> None:
    def reconstruct(pixels: torch.Tensor) -> torch.Tensor:
        decoded: torch.Tensor = vae.decode(vae.encode(with_alpha(pixels)).latent_dist.mode()).sample
        return decoded[:, :3, 0]

    def log_psnr(steps: int) -> None:
        psnr = ", ".join(f"{psnr_of(reconstruct, size):.1f} dB at {size} px" for size in SIZES)
        log(f"vae: {steps} steps, PSNR {psnr}")

    optimizer = Muon(vae, schedule.learning_rate, qwen_vae.is_hidden)
    fit(vae, lambda step: loss(vae, step), schedule, work, "vae", log, after=log_psnr, optimizer=optimizer)


def new_transformer() -> QwenImage21Transformer2DModel:
    """An untrained transformer."""
    return QwenImage21Transformer2DModel(
        in_channels=CHANNELS, out_channels=CHANNELS, num_layers=6, attention_head_dim=32, num_attention_heads=4,
        context_in_dim=WIDTH, axes_dims_rope=(8, 12, 12),
    )  # fmt: skip


def prompts_by_length(pipeline: Any, prompts: list[str]) -> Iterator[tuple[list[int], torch.Tensor]]:
    """Rows and embeddings (rows, tokens, WIDTH) of prompts of equal length, as the pipeline computes them."""
    embeds, mask, _ = pipeline._get_qwen_prompt_embeds(prompts, None, "cpu")
    lengths = mask.sum(1).tolist()
    for length in sorted(set(lengths)):
        rows = [row for row, tokens in enumerate(lengths) if tokens == length]
        yield rows, embeds[rows, :length]


def flow_loss(pipeline: Any, pool: LatentPool, step: int) -> torch.Tensor:
    """Scalar: squared error of the velocity. One pass per length of a text, because positions depend on it."""
    batch = SetBatch.at_step(pool, step)
    tokens, velocity = (maps.flatten(2).transpose(1, 2) for maps in (batch.noisy, batch.velocity))
    shape, errors = batch.noisy.shape[2:], []
    for rows, embeds in prompts_by_length(pipeline, batch.prompts):
        slots = torch.zeros(len(rows), embeds.shape[1] + tokens.shape[1] // 4, dtype=torch.bool)
        slots[:, embeds.shape[1] :] = True
        predicted = pipeline.transformer(
            hidden_states=tokens[rows],
            timestep=batch.sigma[rows],
            encoder_hidden_states=embeds,
            img_shapes=[[(1, *shape)]] * len(rows),
            img_mask=slots,
            return_dict=False,
        )[0][:, -tokens.shape[1] :]
        errors.append((predicted - velocity[rows]).square().flatten(1).mean(1))
    return torch.cat(errors).mean()


def build(work: Path, out: Path, klein: Path, log: Log = print) -> None:
    """Train (or resume) the small Qwen-Image-2.1 with the text encoder of the klein in this folder; save to ``out``."""
    vae = build_vae(work / "vae", log)
    pool = LatentPool.build(lambda pixels: encode(vae, pixels), list(SIZES), work / "latents.safetensors", log)
    reader = Flux2KleinPipeline.from_pretrained(klein, transformer=None, vae=None)
    torch.manual_seed(0)
    processor = processor_of(reader.tokenizer)
    encoder = text_encoder_of(reader.text_encoder, len(processor.tokenizer), layers=TRAINED)
    encoder.model.language_model.requires_grad_(True)
    parts = torch.nn.ModuleDict({"transformer": new_transformer(), "text_encoder": encoder})
    pipeline = QwenImage21Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=SHIFT), vae=vae, processor=processor,
        **dict(parts.items()),
    )  # fmt: skip
    count = sum(weight.numel() for weight in parts["transformer"].parameters())
    log(f"qwen_image_21: transformer of {count / 1e6:.2f} M parameters")
    fit_pipeline(
        parts,
        lambda step: flow_loss(pipeline, pool, step),
        SCHEDULE,
        work,
        out,
        log,
        hidden=is_hidden,
        pipeline=lambda: pipeline,
    )
