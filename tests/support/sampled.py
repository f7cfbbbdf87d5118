"""Images that a policy generates, and reference images, for comparisons with the plain pipeline of a family."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from paco_core.grpo.rollout import Sampling, rollout
from paco_core.io.pictures import normalize_image
from paco_core.policies.base import NoiseKey, Size

KEYS = [NoiseKey(f"p{n}", n, 3) for n in range(3)]


def pictures(*sizes: Size) -> list[Image.Image]:
    """References of these widths and heights."""
    rng = np.random.default_rng(4)
    small = [Image.fromarray(rng.integers(0, 255, (4, 4, 3), dtype=np.uint8)) for _ in sizes]
    return [image.resize(size, Image.Resampling.NEAREST) for image, size in zip(small, sizes, strict=True)]


def pixels(image: Image.Image) -> np.ndarray:
    """An image as integers (height, width, 3)."""
    return np.asarray(normalize_image(image), dtype=int)


def sample(policy: Any, encoded: Any, size: Size, steps: int, guidance: float) -> np.ndarray:
    """Images of encoded prompts (rows, height, width, 3), with the noise of :data:`KEYS`."""
    rows = range(len(encoded.rows))
    settings = Sampling.for_policy(policy, size, steps, guidance)
    trajectory = rollout(policy, encoded, rows, KEYS[: len(rows)], settings)
    return np.stack([pixels(image) for image in policy.decode(trajectory.latents, size)])
