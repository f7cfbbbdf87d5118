"""Each family sampled and trained on another device than its weights' buffers begin on.

The device is ``meta``: it computes nothing, but copies are made to it as to a GPU. What a transformer caches of such
a copy (Qwen-Image its rotary frequencies) is made in the first pass, which a rollout runs, and a trained one uses it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from paco_core.config.params import PolicyLora
from paco_core.grpo.dynamics import DYNAMICS
from paco_core.grpo.rollout import Sampling, rollout
from paco_core.policies import base
from paco_core.policies.base import NoiseKey
from paco_core.policies.encoded import Encoded
from paco_core.policies.families import FAMILIES, family_of
from tests.support.tiny import TEXT_LENGTH, tiny_flux, tiny_kontext
from tests.support.tiny_pipelines import flux2_klein, qwen_image, qwen_image_edit, qwen_image_edit_plus

BUILDERS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "flux": ("flux", tiny_flux),
    "flux_kontext": ("flux_kontext", tiny_kontext),
    "qwen_image_edit": ("qwen_image_edit", qwen_image_edit),
    "2509": ("qwen_image_edit_plus", qwen_image_edit_plus),
    "2511": ("qwen_image_edit_plus", partial(qwen_image_edit_plus, zero_cond_t=True)),
    "qwen_image": ("qwen_image", qwen_image),
    "flux2_klein": ("flux2_klein", flux2_klein),
}
SIZE = (32, 32)


def test_every_family_is_here() -> None:
    assert {name for name, _ in BUILDERS.values()} == set(FAMILIES)


@pytest.mark.slow
@pytest.mark.parametrize("case", BUILDERS)
def test_a_rollout_leaves_nothing_that_a_trained_pass_cannot_use(tmp_path: Path, case: str) -> None:
    name, build = BUILDERS[case]
    task = "edits" if family_of(name).references[1] else None
    policy: Any = base.load(name, str(build(tmp_path / "model")), "cpu", "float32", task=task)
    pictures = [Image.new("RGB", (64, 64), "red")] * 2 if policy.edits else None
    words = policy.encode(["one", "one"], TEXT_LENGTH, pictures, [[SIZE]] * 2)
    policy.add_adapter(PolicyLora(rank=2, alpha=4), 0)
    policy.transformer.to("meta")
    policy.device = "meta"
    encoded = Encoded(words.rows, policy.device)
    sampling = Sampling.for_policy(policy, SIZE, 3, 3.5, noise_steps=[1], noise_level=0.7)
    kept = rollout(policy, encoded, [0, 1], [NoiseKey("p", image, 0) for image in range(2)], sampling).noisy_steps[0]
    step = sampling.steps[1]
    velocity = policy.velocity(kept.before, step.sigma, encoded.take([0, 1]), 3.5, SIZE)
    transition = DYNAMICS[sampling.dynamics].transition(kept.before, velocity, step)
    DYNAMICS[sampling.dynamics].log_prob(kept.after, transition).sum().backward()
    assert any(parameter.grad is not None for parameter in policy.trainable().values())


@pytest.mark.slow
@pytest.mark.parametrize("case", BUILDERS)
def test_memory_of_the_text_encoders_goes_back_to_the_gpu(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch would keep it for tensors to come: 10 GB of FLUX, 17 GB of Qwen-Image-Edit."""
    name, build = BUILDERS[case]
    policy: Any = base.load(name, str(build(tmp_path / "model")), "cpu", "float32")
    encoders = [weakref.ref(getattr(policy.pipeline, part)) for part in policy.known.text_encoders]
    left = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: left.append([encoder() for encoder in encoders]))
    policy.device = "cuda"
    policy.drop_encoders()
    assert encoders and left == [[None] * len(encoders)], "no encoder lives when the memory is given back"
