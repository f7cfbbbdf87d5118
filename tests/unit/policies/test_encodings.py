"""Encodings that are kept belong to the encoders that made them, with the adapters on them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from paco_core.policies import base
from paco_core.policies.encodings import encoder_fingerprint, hash_active_adapters
from tests.support.tiny import TEXT_LENGTH, tiny_flux


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_flux(tmp_path_factory.mktemp("encodings") / "flux")


@pytest.fixture(scope="module")
def adapter(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA of CLIP, as others train it together with the transformer's."""
    clip, draw = load(model).pipeline.text_encoder, torch.Generator().manual_seed(1)
    tensors = {}
    for name, layer in clip.named_modules():
        if isinstance(layer, torch.nn.Linear) and name.endswith(("q_proj", "v_proj")):
            place = f"text_encoder.{name if name.startswith('text_model.') else f'text_model.{name}'}"
            tensors[f"{place}.lora_A.weight"] = torch.randn(4, layer.in_features, generator=draw)
            tensors[f"{place}.lora_B.weight"] = torch.randn(layer.out_features, 4, generator=draw)
    folder = tmp_path_factory.mktemp("adapter")
    save_file(tensors, folder / "pytorch_lora_weights.safetensors")
    return folder


def load(model: Path, cache: Path | None = None, adapter: Path | None = None) -> Any:
    policy: Any = base.load_policy("flux", str(model), "cpu", "float32", cache=cache)
    if adapter is not None:  # not by load_adapter: whether text encoders are taken there is another question
        state, alphas, *_ = policy.pipeline.lora_state_dict(str(adapter), return_alphas=True)
        policy.pipeline.load_lora_into_text_encoder(
            state, network_alphas=alphas, text_encoder=policy.pipeline.text_encoder, prefix="text_encoder"
        )
    return policy


def pooled(policy: Any) -> torch.Tensor:
    return policy.encode(["a blue bear"], TEXT_LENGTH).rows[0]["pooled_prompt_embeds"]


def test_scale_and_weights_of_an_adapter_count(model: Path, adapter: Path) -> None:
    assert hash_active_adapters([load(model).pipeline.text_encoder, None]) == ""
    encoder = load(model, adapter=adapter).pipeline.text_encoder
    digests = {hash_active_adapters([encoder])}
    assert digests != {""} and hash_active_adapters([encoder]) in digests
    layer = next(module for module in encoder.modules() if hasattr(module, "lora_A"))
    (name,) = layer.scaling
    layer.scaling[name] *= 0.5
    digests.add(hash_active_adapters([encoder]))
    with torch.no_grad():
        layer.lora_A[name].weight[0, 0] += 1
    digests.add(hash_active_adapters([encoder]))
    assert len(digests) == 3


def test_the_precision_of_products_counts(model: Path, tmp_path: Path) -> None:
    """A training in bfloat16 on a GPU multiplies float32 matrices in TF32; painting does not."""
    before = torch.get_float32_matmul_precision()
    try:
        for number, precision in enumerate(("highest", "high"), start=1):
            torch.set_float32_matmul_precision(precision)
            pooled(load(model, tmp_path))
            assert len(list(tmp_path.rglob("*.safetensors"))) == number
    finally:
        torch.set_float32_matmul_precision(before)


def test_weights_in_the_place_of_others_of_their_size_and_time_are_others(tmp_path: Path) -> None:
    weights = tmp_path / "model/text_encoder/model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"one")
    os.utime(weights, (1, 1))
    fingerprint_before = encoder_fingerprint(tmp_path / "model", "float32", "cpu")
    weights.write_bytes(b"two")
    os.utime(weights, (1, 1))
    assert encoder_fingerprint(tmp_path / "model", "float32", "cpu") != fingerprint_before
