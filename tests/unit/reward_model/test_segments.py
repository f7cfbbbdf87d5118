"""The vision tower's attention in one call a layer is that of transformers, segment by segment."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.nn import functional

from paco_core.reward_model import network as networks
from paco_core.reward_model.network import Network
from paco_core.reward_model.vision import attend_in_one_call
from tests.support.tiny_vlm import build

PICTURES = [Image.effect_noise((width, height), 90).convert("RGB") for width, height in ((140, 84), (56, 56))]


def test_the_features_are_those_of_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network.load(build(tmp_path / "model"))
    calls = []
    real = functional.scaled_dot_product_attention

    def counting(*args: torch.Tensor, **given: object) -> torch.Tensor:
        calls.append(args[0].shape)
        return real(*args, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(functional, "scaled_dot_product_attention", counting)
    with torch.no_grad():
        expected = [visual.tokens for visual in network._encode(PICTURES)]
        before = len(calls)
        attend_in_one_call(network.model.model.visual)
        found = [visual.tokens for visual in network._encode(PICTURES)]
    layers = len(network.model.model.visual.blocks)
    assert len(calls) - before == layers < before, "one call a layer"
    assert {len(shape) for shape in calls[before:]} == {4} and max(shape[0] for shape in calls[before:]) > 2
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("device", "asked"), [("cpu", 0), ("meta", 1)])
def test_a_processor_keeps_the_librarys_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, asked: int
) -> None:
    """Its scores stay the same to the last bit."""
    seen: list[object] = []
    monkeypatch.setattr(networks, "attend_in_one_call", seen.append)
    Network.load(build(tmp_path / "model"), device=device)
    assert len(seen) == asked
