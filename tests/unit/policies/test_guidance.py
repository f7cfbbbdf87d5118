"""True guidance of Qwen-Image-Edit, by hand."""

from __future__ import annotations

from typing import Any

import torch

from paco_core.policies.families import family_of
from paco_core.policies.qwen_image_edit import QwenImageEditPolicy


def test_each_token_keeps_the_norm_that_it_has_without_guidance() -> None:
    policy: Any = QwenImageEditPolicy.__new__(QwenImageEditPolicy)
    policy.known = family_of("qwen_image_edit")
    generator = torch.Generator().manual_seed(0)
    passes = {name: torch.randn(2, 5, 3, generator=generator) for name in ("text", "negative")}
    policy._predict = lambda _latents, _sigma, _condition, name, _size: passes[name]
    given = policy.velocity(None, 0.5, None, 4.0, (32, 32))
    direction = passes["negative"] + 4.0 * (passes["text"] - passes["negative"])
    expected = direction / direction.norm(dim=-1, keepdim=True) * passes["text"].norm(dim=-1, keepdim=True)
    assert torch.allclose(given, expected, atol=1e-6) and not torch.allclose(given, direction, atol=0.1)
    assert torch.equal(policy.velocity(None, 0.5, None, 1.0, (32, 32)), passes["text"]), "one pass without guidance"
