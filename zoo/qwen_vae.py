"""The autoencoder of the small Qwen-Image-Edit: Qwen-Image's video autoencoder, trained on single images.

Factor 8, 16 channels. Its kernels over time are zero except for their last slice, which an image needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLQwenImage

from paco_core.policies.single_frame import use_single_frame_convolutions
from zoo.fitting import Log, Muon, Schedule, fit
from zoo.vae import decoder_noise, kl_loss, load_as_identity, panel_batch, pixel_loss, psnr_of

SCHEDULE = Schedule(steps=720, learning_rate=2e-2, warmup=30, checkpoint_every=200)
#: Panel sizes in pixels, and panels per batch; a batch has one size.
BATCHES = ((64, 14), (64, 14), (64, 14), (128, 4))
#: Afterwards, only the decoder is trained, with more layers. The latents stay, so the generator stays valid.
DECODER_LAYERS = 3
DECODER_SCHEDULE = Schedule(steps=2500, learning_rate=1e-2, warmup=20, checkpoint_every=100)
DECODER_BATCHES = ((64, 8), (64, 8), (64, 8), (128, 2))
CHANNELS = 16


def new_vae(layers: int = 1) -> AutoencoderKLQwenImage:
    """An untrained autoencoder whose posterior starts narrow: noise of unit variance would drown the colours."""
    vae = AutoencoderKLQwenImage(
        base_dim=12,
        z_dim=CHANNELS,
        dim_mult=[1, 2, 4, 6],
        num_res_blocks=layers,
        temperal_downsample=[False, False, False],
        latents_mean=[0.0] * CHANNELS,
        latents_std=[1.0] * CHANNELS,
    )
    with torch.no_grad():
        for weight in vae.parameters():
            if weight.ndim == 5:
                weight[:, :, :-1] = 0
        vae.quant_conv.bias[CHANNELS:] = -5.0
        vae.quant_conv.weight[CHANNELS:] *= 0.1
    use_single_frame_convolutions(vae)
    return vae


def reconstruction_loss(vae: Any, step: int) -> torch.Tensor:
    """Scalar loss on the pixels, and a little KL (smooth latents), of one batch of panels of one size."""
    size, count = BATCHES[step % len(BATCHES)]
    pixels = panel_batch(size, count, seed=3 * 10**7 + step)
    generator = torch.Generator().manual_seed(step)
    with torch.autocast("cpu", torch.bfloat16):
        posterior = vae.encode(pixels.unsqueeze(2)).latent_dist
        decoded = vae.decode(posterior.sample(generator)).sample[:, :, 0]
    return pixel_loss(decoded, pixels) + kl_loss(posterior)


def deepened(vae: AutoencoderKLQwenImage, layers: int = DECODER_LAYERS) -> AutoencoderKLQwenImage:
    """The same function with ``layers`` residual blocks per level (one more in the decoder)."""
    deeper = new_vae(layers)
    deeper.register_to_config(latents_mean=vae.config.latents_mean, latents_std=vae.config.latents_std)
    load_as_identity(deeper, _renumbered(vae.state_dict(), layers))
    return deeper


def _renumbered(weights: dict[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    """Weights of one block per level, named for ``layers``: the encoder numbers blocks and downsamplers in one list."""
    prefix = "encoder.down_blocks."

    def new_name(name: str) -> str:
        if not name.startswith(prefix):
            return name
        number, _, suffix = name.removeprefix(prefix).partition(".")
        level, downsampler = divmod(int(number), 2)
        return f"{prefix}{level * (layers + 1) + downsampler * layers}.{suffix}"

    return {new_name(name): weight for name, weight in weights.items()}


def decoder_loss(vae: Any, step: int) -> torch.Tensor:
    """Scalar loss on the pixels of one batch, without a graph through the encoder."""
    size, count = DECODER_BATCHES[step % len(DECODER_BATCHES)]
    pixels = panel_batch(size, count, seed=4 * 10**7 + step)
    generator = torch.Generator().manual_seed(4 * 10**7 + step)
    with torch.no_grad():
        latents = vae.encode(pixels.unsqueeze(2)).latent_dist.sample(generator)
        deviation = torch.tensor(vae.config.latents_std).view(1, -1, 1, 1, 1)
        latents = latents + decoder_noise(latents.shape, generator) * deviation
    return pixel_loss(vae.decode(latents).sample[:, :, 0], pixels)


def encode(vae: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Scaled latents (n, 16, s / 8, s / 8) of drawings, as the pipeline encodes reference images."""
    with torch.autocast("cpu", torch.bfloat16):
        latents = vae.encode(pixels.unsqueeze(2)).latent_dist.mode()[:, :, 0].float()
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (vae.config.latents_mean, vae.config.latents_std))
    scaled: torch.Tensor = (latents - mean) / std
    return scaled


def latent_statistics(vae: Any) -> tuple[list[float], list[float]]:
    """Mean and deviation of each channel over drawings of every size."""
    with torch.inference_mode():
        batches = [panel_batch(size, 64, seed=10**6 + size) for size, _ in dict.fromkeys(BATCHES)]
        return channel_statistics([vae.encode(p.unsqueeze(2)).latent_dist.mode() for p in batches])


def channel_statistics(batches: Sequence[torch.Tensor]) -> tuple[list[float], list[float]]:
    """Mean and deviation of each channel of latents (n, channels, ...)."""
    rows = torch.cat([latents.transpose(0, 1).flatten(1) for latents in batches], dim=1)
    return [round(v, 5) for v in rows.mean(1).tolist()], [round(v, 5) for v in rows.std(1).tolist()]


def psnr(vae: Any, size: int, count: int = 64, seed: int = 2 * 10**6) -> float:
    """Peak signal-to-noise ratio in dB of reconstructions of unseen panels."""
    return psnr_of(
        lambda pixels: vae.decode(vae.encode(pixels.unsqueeze(2)).latent_dist.mode()).sample[:, :, 0], size, count, seed
    )


def build_vae(work: Path, log: Log = print) -> AutoencoderKLQwenImage:
    """Train (or go on training) the autoencoder in ``work``; latents have mean 0 and deviation 1 by its config."""
    torch.manual_seed(0)
    vae = new_vae()

    optimizer = Muon(vae, SCHEDULE.learning_rate, is_hidden)
    fit(vae, lambda step: reconstruction_loss(vae, step), SCHEDULE, work, "vae", log, optimizer=optimizer)
    mean, std = latent_statistics(vae.eval())
    vae.register_to_config(latents_mean=mean, latents_std=std)
    return train_decoder(vae, work / "decoder", log)


def train_decoder(vae: AutoencoderKLQwenImage, work: Path, log: Log = print) -> AutoencoderKLQwenImage:
    """Train a deeper decoder on the latents of ``vae`` (or resume in ``work``)."""
    deeper = deepened(vae)
    deeper.encoder.requires_grad_(False)
    deeper.quant_conv.requires_grad_(False)

    def tell(steps: int) -> None:
        deeper.eval()
        log(f"vae: {steps} steps, PSNR " + ", ".join(f"{psnr(deeper, s):.1f} dB at {s} px" for s in (64, 128)))
        deeper.train()

    optimizer = Muon(deeper, DECODER_SCHEDULE.learning_rate, is_hidden)
    fit(
        deeper, lambda step: decoder_loss(deeper, step), DECODER_SCHEDULE, work, "vae", log,
        after=tell, optimizer=optimizer,
    )  # fmt: skip
    return deeper.eval()


def is_hidden(name: str, weight: torch.Tensor) -> bool:
    """Weights for Muon: convolutions (out, in, ...) but the first and the last. ``gamma`` is the scale of a norm."""
    outer = name in {"encoder.conv_in.weight", "decoder.conv_out.weight"}
    return weight.ndim >= 4 and not outer and "gamma" not in name
