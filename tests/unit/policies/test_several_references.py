"""Qwen-Image-Edit-Plus with one to three references against its plain pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as plus
from PIL import Image

from paco_core.grpo.rollout import Sampling, rollout
from paco_core.policies import base
from paco_core.policies.base import NoiseKey
from tests.support.tiny import TEXT_LENGTH
from tests.support.tiny_pipelines import qwen_image_edit_plus

PROMPT, SIZE, STEPS = "a red cat on the beach", (32, 64), 2
SHAPES = [(64, 32), (96, 96), (32, 80)]  # width and height: none has the proportions of the painted picture


@pytest.fixture(scope="module", params=[False, True], ids=["2509", "2511"])
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        build = partial(qwen_image_edit_plus, zero_cond_t=request.param)
        folder = build(tmp_path_factory.mktemp("plus") / "model")
    return base.load("qwen_image_edit_plus", str(folder), "cpu", "float32", reference_size=64)


def pictures(count: int) -> list[Image.Image]:
    rng = np.random.default_rng(3)
    small = [Image.fromarray(rng.integers(0, 255, (4, 4, 3), dtype=np.uint8)) for _ in range(3)]
    return [one.resize(shape, Image.Resampling.NEAREST) for one, shape in zip(small, SHAPES, strict=True)][:count]


def painted(policy: Any, references: Sequence[list[Image.Image]], guidance: float) -> np.ndarray:
    count = len(references)
    encoded = policy.encode([PROMPT] * count, TEXT_LENGTH, references, [[SIZE]] * count, guidance=guidance)
    keys = [NoiseKey("p", n, 0) for n in range(count)]
    done = rollout(policy, encoded, range(count), keys, Sampling.for_policy(policy, SIZE, STEPS, guidance))
    return np.stack([np.asarray(image, dtype=int) for image in policy.decode(done.latents, SIZE)])


@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_pictures_equal_those_of_the_pipeline(policy: Any, monkeypatch: pytest.MonkeyPatch, guidance: float) -> None:
    monkeypatch.setattr(plus, "VAE_IMAGE_SIZE", 64 * 64)
    given = [pictures(3), pictures(1), pictures(2)[::-1]]
    ours = painted(policy, given, guidance)
    noise = policy.noise(SIZE, [NoiseKey("p", n, 0) for n in range(3)])
    for row, references in enumerate(given):
        (theirs,) = policy.pipeline(
            prompt=PROMPT, image=references, negative_prompt=" ", true_cfg_scale=guidance, height=SIZE[0],
            width=SIZE[1], num_inference_steps=STEPS, latents=noise[row : row + 1],
        ).images  # fmt: skip
        assert np.abs(ours[row] - np.asarray(theirs, dtype=int)).max() <= 1, f"{len(references)} references"
    assert len({row.tobytes() for row in ours}) == 3


def test_a_very_long_reference_keeps_a_side_that_the_model_takes(policy: Any) -> None:
    encoded = policy.encode([PROMPT], TEXT_LENGTH, [[Image.new("RGB", (1000, 4))]], [[SIZE]])
    assert encoded.rows[0]["reference 32x64 shapes"].min() > 0
