"""The autoencoder of the small FLUX: factor 8, 16 channels, convolutions only.

Without attention in its middle a panel's latents do not depend on its neighbours (but at the border),
so grids of any layout can be put together from the latents of panels.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.storybook.drawing import draw
from paco_core.storybook.world import random_panel
from paco_core.storybook.zoo.fitting import Say, Schedule, fit

if TYPE_CHECKING:
    import torch
    from diffusers import AutoencoderKL

SCHEDULE = Schedule(steps=4500, learning_rate=2e-3, warmup=100, weight_decay=1e-4, checkpoint_every=500)
#: Panel sizes in pixels and how many a batch holds; a batch has one size.
BATCHES = ((32, 20), (48, 9), (64, 5))
KL_WEIGHT = 5e-4


def new_vae() -> AutoencoderKL:
    """An untrained autoencoder."""
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(16, 32, 64, 96),
        layers_per_block=1,
        latent_channels=16,
        norm_num_groups=8,
        mid_block_add_attention=False,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def panel_batch(size: int, count: int, seed: int) -> torch.Tensor:
    """``count`` drawings of random panels, float32 (count, 3, size, size) in -1..1."""
    import numpy as np
    import torch

    rng = random.Random(seed)
    drawn = np.stack([np.asarray(draw(random_panel(rng), size, rng)) for _ in range(count)])
    return torch.from_numpy(drawn).permute(0, 3, 1, 2).float() / 127.5 - 1


def reconstruction_loss(vae: Any, step: int) -> torch.Tensor:
    """L1 on pixels and on their differences (edges stay sharp), and a little KL (latents stay smooth)."""
    import torch

    size, count = BATCHES[step % len(BATCHES)]
    pixels = panel_batch(size, count, seed=step)
    generator = torch.Generator().manual_seed(step)
    with torch.autocast("cpu", torch.bfloat16):
        posterior = vae.encode(pixels).latent_dist
        decoded = vae.decode(posterior.sample(generator)).sample
    decoded = decoded.float()
    edges = sum((decoded.diff(dim=d) - pixels.diff(dim=d)).abs().mean() for d in (2, 3))
    mean, log_variance = posterior.mean.float(), posterior.logvar.float()
    kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
    return (decoded - pixels).abs().mean() + 0.5 * edges + KL_WEIGHT * kl


def latent_statistics(vae: Any) -> tuple[float, float]:
    """(shift, scale) so that ``(latents - shift) * scale`` has mean 0 and deviation 1."""
    import torch

    with torch.inference_mode():
        latents = torch.cat(
            [
                vae.encode(panel_batch(size, 64, seed=10**6 + size)).latent_dist.mode().flatten()
                for size, _ in BATCHES
            ]
        )
    return latents.mean().item(), 1 / latents.std().item()


def psnr(vae: Any, size: int, count: int = 128, seed: int = 2 * 10**6) -> float:
    """Peak signal-to-noise ratio in dB of reconstructions of unseen panels."""
    import torch

    with torch.inference_mode():
        pixels = panel_batch(size, count, seed)
        error = (
            (vae.decode(vae.encode(pixels).latent_dist.mode()).sample.clamp(-1, 1) - pixels).square().mean()
        )
    return 10 * float(torch.log10(4 / error))


def build_vae(work: Path, say: Say = print) -> AutoencoderKL:
    """Train (or go on training) the autoencoder in ``work`` and save it to ``work/final``."""
    import torch

    torch.manual_seed(0)
    vae = new_vae()

    def export(steps: int) -> None:
        shift, scale = latent_statistics(vae.eval())
        vae.register_to_config(shift_factor=round(shift, 5), scaling_factor=round(scale, 5))
        vae.save_pretrained(work / "final")
        say(f"vae: {steps} steps, PSNR " + ", ".join(f"{psnr(vae, s):.1f} dB at {s} px" for s, _ in BATCHES))
        vae.train()

    fit(vae, lambda step: reconstruction_loss(vae, step), SCHEDULE, work, "vae", say, after=export)
    return vae.eval()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    build_vae(Path(".paco/zoo/vae"))
