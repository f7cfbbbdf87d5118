"""Training batches of the small Z-Image, FLUX 3 Klein and Qwen-Image-2.1: prompts and noisy 2x2 sets of one size.

Half of the sets differ from their prompt in a shared trait, so the models are imperfect on purpose.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from paco_core.storybook.prompts import KINDS, compose_storybook_prompt, random_set
from zoo.fitting import Schedule
from zoo.flux import LatentPool, perturbed_panels

#: Share of the steps and grids per batch, by the size of a panel in pixels. A 2x2 grid has twice the size.
SIZES = {32: (0.5, 20), 64: (0.5, 16)}
EMPTY_SHARE = 0.1  # share of empty training prompts, for classifier-free guidance
CONSISTENT_SHARE = 0.5  # of the training sets
SHIFT = 2.0  # of the sigmas in training, for all sizes
SCHEDULE = Schedule(steps=2000, learning_rate=2e-2, warmup=60, checkpoint_every=200)


@dataclass(frozen=True)
class SetBatch:
    """N prompts, noisy latents (N, channels, height, width), their sigmas (N,), and the velocities (as the latents)."""

    prompts: list[str]
    noisy: torch.Tensor
    sigma: torch.Tensor
    velocity: torch.Tensor

    @classmethod
    def at_step(cls, pool: LatentPool, step: int) -> SetBatch:
        """The batch of a training step."""
        rng = random.Random(step)
        size = rng.choices(list(SIZES), [share for share, _ in SIZES.values()])[0]
        _, count = SIZES[size]
        sets = [random_set(rng.randrange(len(KINDS)), 4, rng) for _ in range(count)]
        prompts = [compose_storybook_prompt(panels, "2x2", kind).prompt for kind, panels in sets]
        texts = ["" if rng.random() < EMPTY_SHARE else prompt for prompt in prompts]
        grids = [pool.grid(size, perturbed_panels(panels, rng, CONSISTENT_SHARE), rng) for _, panels in sets]
        clean, generator = torch.stack(grids), torch.Generator().manual_seed(step)
        odds = SHIFT * torch.exp(torch.randn(count, generator=generator))
        sigma = odds / (1 + odds)
        noise = torch.randn(clean.shape, generator=generator)
        velocity = noise - clean
        return cls(texts, clean + sigma[:, None, None, None] * velocity, sigma, velocity)


def is_hidden(name: str, weight: torch.Tensor) -> bool:
    """Weights for Muon: matrices (out, in) of attention and feed-forward layers, without modulations and embeddings."""
    layers = (".attention.", ".feed_forward.", ".attn.", ".ff.")
    return weight.ndim == 2 and any(layer in name for layer in layers)


def klein_weights(klein: Any, names: Iterable[str], prefix: str = "") -> dict[str, torch.Tensor]:
    """The weights of the small klein's text encoder that another text encoder with ``names`` has, too.

    Their shapes are those of the klein, for example (tokens, WIDTH) for the embeddings.

    Args:
        prefix: of the names.
    """
    weights = klein.model.state_dict()
    return {name: weights[name.removeprefix(prefix)] for name in names if name.removeprefix(prefix) in weights}
