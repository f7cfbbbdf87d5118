"""The autoencoder of the small FLUX: factor 8, 16 channels, only convolutions.

Without attention, the latents of a panel do not depend on its neighbors (except at the border). Therefore, the latents
of panels can be combined into grids of any layout.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL

from paco_core.storybook.drawing import draw
from paco_core.storybook.world import random_panel
from zoo.fitting import Log, Muon, Schedule, fit

SCHEDULE = Schedule(steps=1200, learning_rate=2e-2, warmup=30, checkpoint_every=200)
#: Panel sizes in pixels, and panels per batch; a batch has one size.
BATCHES = ((32, 28), (48, 12), (64, 8))
#: Afterwards, only the decoder is trained, with more layers. The latents stay, so the generators stay valid.
DECODER_LAYERS = 3
DECODER_SCHEDULE = Schedule(steps=4000, learning_rate=1e-2, warmup=20, checkpoint_every=200)
DECODER_BATCHES = ((32, 32), (48, 12), (64, 8), (64, 8), (96, 4))
#: A generator's latents are never exact: noise of up to this share of the latents' deviation, in half of the batches.
DECODER_NOISE = 0.15
KL_WEIGHT = 1e-4


def new_vae(layers: int = 1) -> AutoencoderKL:
    """An untrained autoencoder whose posterior starts narrow: noise of unit variance would drown the colours."""
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(16, 32, 64, 96),
        layers_per_block=layers,
        latent_channels=16,
        norm_num_groups=8,
        mid_block_add_attention=False,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )
    with torch.no_grad():
        vae.encoder.conv_out.bias[16:] = -5.0
        vae.encoder.conv_out.weight[16:] *= 0.1
    return vae


def deepened(vae: AutoencoderKL, layers: int = DECODER_LAYERS) -> AutoencoderKL:
    """The same function with ``layers`` residual blocks per level (one more in the decoder)."""
    deeper = new_vae(layers)
    deeper.register_to_config(shift_factor=vae.config.shift_factor, scaling_factor=vae.config.scaling_factor)
    load_as_identity(deeper, vae.state_dict())
    return deeper


def load_as_identity(vae: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Load the weights of an autoencoder with fewer residual blocks.

    The last convolution of each other block becomes zero, so the block is the identity.

    Args:
        weights: by name, each shaped like the parameter of this name.
    """
    missing, _ = vae.load_state_dict(weights, strict=False)
    with torch.no_grad():
        for name in missing:
            if ".conv2." in name:
                vae.get_parameter(name).zero_()


def panel_batch(size: int, count: int, seed: int) -> torch.Tensor:
    """``count`` drawings of random panels, float32 (count, 3, size, size) in -1..1."""
    rng = random.Random(seed)
    images = np.stack([np.asarray(draw(random_panel(rng), size, rng)) for _ in range(count)])
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1


def pixel_loss(decoded: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    """Scalar L1 and L2 on pixels (n, 3, s, s), L1 on edges and on opponent colors.

    Red against green has little variance in these images, so the model would learn it last. It distinguishes the
    characters, so the opponent colors have a separate loss.
    """
    error = decoded.float() - pixels
    edges = error.diff(dim=2).abs().mean() + error.diff(dim=3).abs().mean()
    red, green, blue = error.unbind(1)
    colours = (red - green).abs().mean() + 0.5 * (blue - 0.5 * (red + green)).abs().mean()
    return error.abs().mean() + error.square().mean() + 0.3 * edges + 0.3 * colours


def reconstruction_loss(vae: Any, step: int) -> torch.Tensor:
    """Scalar loss on the pixels, and a small KL term (smooth latents), of one batch of one panel size.

    Panels are encoded one by one. In every second round, their latents are decoded as 2x2 grids, like a policy's
    latents.
    """
    size, count = BATCHES[step % len(BATCHES)]
    pixels = panel_batch(size, count, seed=step)
    generator = torch.Generator().manual_seed(step)
    with torch.autocast("cpu", torch.bfloat16):
        posterior = vae.encode(pixels).latent_dist
        latents = posterior.sample(generator)
        if step // len(BATCHES) % 2:
            latents, pixels = as_grids(latents), as_grids(pixels)
        decoded = vae.decode(latents).sample
    return pixel_loss(decoded, pixels) + kl_loss(posterior)


def kl_loss(posterior: Any) -> torch.Tensor:
    """Scalar: a small share of the divergence of a posterior (n, channels, ...) from the normal distribution."""
    mean, log_variance = posterior.mean.float(), posterior.logvar.float()
    return KL_WEIGHT * 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()


def decoder_loss(vae: Any, step: int) -> torch.Tensor:
    """Scalar loss on the pixels without a graph through the encoder; four rounds in five decode 2x2 grids."""
    size, count = DECODER_BATCHES[step % len(DECODER_BATCHES)]
    pixels = panel_batch(size, count, seed=10**7 + step)
    generator = torch.Generator().manual_seed(10**7 + step)
    with torch.no_grad():
        latents = vae.encode(pixels).latent_dist.sample(generator)
        latents = latents + decoder_noise(latents.shape, generator) / vae.config.scaling_factor
    if step // len(DECODER_BATCHES) % 5:
        latents, pixels = as_grids(latents), as_grids(pixels)
    return pixel_loss(vae.decode(latents).sample, pixels)


def decoder_noise(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Noise for scaled latents (n, ...): none for half of the images, up to ``DECODER_NOISE`` for the rest."""
    strength = (torch.rand(shape[0], *[1] * (len(shape) - 1), generator=generator) * 2 - 1).clamp(min=0)
    return DECODER_NOISE * strength * torch.randn(*shape, generator=generator)


def as_grids(tiles: torch.Tensor) -> torch.Tensor:
    """(4 n, c, s, s) -> (n, c, 2 s, 2 s): each four in a row become a 2x2 grid in reading order."""
    count, channels, side, _ = tiles.shape
    grouped = tiles.view(count // 4, 2, 2, channels, side, side).permute(0, 3, 1, 4, 2, 5)
    return grouped.reshape(count // 4, channels, 2 * side, 2 * side)


def latent_statistics(vae: Any) -> tuple[float, float]:
    """(shift, scale) for ``(latents - shift) * scale`` with mean 0 and standard deviation 1."""
    with torch.inference_mode():
        latents = torch.cat(
            [vae.encode(panel_batch(size, 64, seed=10**6 + size)).latent_dist.mode().flatten() for size, _ in BATCHES]
        )
    return latents.mean().item(), 1 / latents.std().item()


def psnr(vae: Any, size: int, count: int = 128, seed: int = 2 * 10**6) -> float:
    """Peak signal-to-noise ratio in dB of reconstructions of unseen panels."""
    return psnr_of(lambda pixels: vae.decode(vae.encode(pixels).latent_dist.mode()).sample, size, count, seed)


def psnr_of(
    reconstruct: Callable[[torch.Tensor], torch.Tensor], size: int, count: int = 64, seed: int = 2 * 10**6
) -> float:
    """Peak signal-to-noise ratio in dB of a function that reconstructs panels (n, 3, s, s) in -1..1."""
    with torch.inference_mode():
        pixels = panel_batch(size, count, seed)
        error = (reconstruct(pixels).clamp(-1, 1) - pixels).square().mean()
    return 10 * float(torch.log10(4 / error))


def build_vae(work: Path, log: Log = print) -> AutoencoderKL:
    """Train (or go on training) the autoencoder in ``work`` and save it to ``work/final``."""
    torch.manual_seed(0)
    vae = new_vae()

    def export_autoencoder(_steps: int) -> None:
        shift, scale = latent_statistics(vae.eval())
        vae.register_to_config(shift_factor=round(shift, 5), scaling_factor=round(scale, 5))
        vae.save_pretrained(work / "autoencoder")
        vae.train()

    _phase(vae, reconstruction_loss, SCHEDULE, work, log, export_autoencoder)
    return train_decoder(vae, work, log)


def train_decoder(vae: AutoencoderKL, work: Path, log: Log = print) -> AutoencoderKL:
    """Train a deeper decoder on the latents of ``vae`` (or resume in ``work/decoder``) and save to ``work/final``."""
    deeper = deepened(vae)
    deeper.encoder.requires_grad_(False)

    def export(steps: int) -> None:
        deeper.eval().save_pretrained(work / "final")
        log(f"vae: {steps} steps, PSNR " + ", ".join(f"{psnr(deeper, s):.1f} dB at {s} px" for s in (32, 64, 96)))
        deeper.train()

    _phase(deeper, decoder_loss, DECODER_SCHEDULE, work / "decoder", log, export)
    return deeper.eval()


def _phase(
    vae: AutoencoderKL,
    loss: Callable[[Any, int], torch.Tensor],
    schedule: Schedule,
    folder: Path,
    log: Log,
    export: Callable[[int], None],
) -> None:
    optimizer = Muon(vae, schedule.learning_rate, _is_hidden)
    fit(vae, lambda step: loss(vae, step), schedule, folder, "vae", log, after=export, optimizer=optimizer)


def _is_hidden(name: str, weight: torch.Tensor) -> bool:
    return weight.ndim == 4 and name not in {"encoder.conv_in.weight", "decoder.conv_out.weight"}
