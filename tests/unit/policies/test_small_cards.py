"""Policies on GPUs of 24 and 48 GB: a transformer of fewer bits, loaded when the text encoders are gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from paco_core.config import profiles
from paco_core.config.changes import changed
from paco_core.config.params import ParamsError, PolicyLora, load
from paco_core.io.files import DataError
from paco_core.planning.memory import server_gb, training_memory
from paco_core.planning.plan import plan
from paco_core.policies import base, quantised
from tests.support.tiny import tiny_flux


def test_a_transformer_comes_to_a_gpu_when_the_text_encoders_are_gone(tmp_path: Path) -> None:
    """``meta`` stands for the GPU."""
    policy: Any = base.load("flux", str(tiny_flux(tmp_path / "flux")), "meta", "bfloat16")
    assert policy.pipeline.text_encoder_2.device.type == "meta" and policy.pipeline.transformer is None
    policy.drop_encoders()
    assert policy.pipeline.transformer is None
    policy.add_adapter(PolicyLora(rank=2, alpha=4), 0)
    assert policy.pipeline.transformer is policy.transformer
    assert {weight.device.type for weight in policy.transformer.parameters()} == {"meta"}
    assert {weight.dtype for weight in policy.trainable().values()} == {torch.float32}


def test_fewer_bits_are_for_a_gpu(repository: Path) -> None:
    params = load(repository / "params.yaml")
    with pytest.raises(ParamsError, match="base nf4 is for a GPU and dtype bfloat16, and this is cpu and mixed"):
        changed(params, {"policies.defaults.base": "nf4"})
    with pytest.raises(ParamsError, match="base fp8 is for a GPU and dtype bfloat16, and this is cuda and float32"):
        changed(
            profiles.read(repository, "paper"), {"policies.defaults.base": "fp8", "policies.defaults.dtype": "float32"}
        )


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised, "find_spec", lambda _name: None)
    quantised.check_base(None)
    for name, library in (("nf4", "bitsandbytes"), ("fp8", "torchao")):
        with pytest.raises(DataError, match=f"policies.defaults.base: {name} needs {library}, which is not installed"):
            quantised.quantization(name, "cuda")


def test_four_bits_are_those_of_qlora(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised, "find_spec", lambda _name: object())
    monkeypatch.setattr("diffusers.BitsAndBytesConfig", dict)
    options = quantised.quantization("nf4", "cuda:3")
    asked = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.bfloat16}
    assert options == {"quantization_config": asked, "device_map": {"": "cuda:3"}}
    assert quantised.quantization(None, "cuda:3") == {}


def test_an_adapter_fits_layers_whose_weights_are_packed(tmp_path: Path) -> None:
    """Four bits lie two in a byte, in one column."""
    trained, other = (base.load("flux", str(tiny_flux(tmp_path / name)), "cpu", "float32") for name in "ab")
    trained.add_adapter(PolicyLora(rank=2, alpha=4), 0)
    trained.save_adapter(tmp_path / "adapter")
    layer = other.transformer.transformer_blocks[0].attn.to_q  # type: ignore[attr-defined]
    layer.weight = torch.nn.Parameter(torch.zeros(layer.weight.numel() // 2, 1, dtype=torch.uint8), requires_grad=False)
    other.load_adapter(tmp_path / "adapter")
    assert other.adapter("default").keys() == trained.adapter("default").keys()


@pytest.mark.parametrize(("profile", "gpu"), [("klein", 24), ("klein_48gb", 48)])
def test_klein_fits_one_gpu_with_its_judge(repository: Path, profile: str, gpu: int) -> None:
    text = str(plan(profiles.read(repository, profile), "flux_t2is", repository))
    assert f"{gpu} GB yes" in text and ("24 GB yes" in text) == (gpu == 24)


def test_fewer_bits_of_the_judge_are_needed_for_klein_on_24_gb(repository: Path) -> None:
    four, eight, whole = (
        changed(profiles.read(repository, "klein"), {"serving.quantization": kept})
        for kept in ("bitsandbytes", "fp8", None)
    )
    servers = [server_gb(params, repository) for params in (four, eight, whole)]
    assert servers == pytest.approx([9.2, 12.1, 18.6], abs=0.1)
    assert "24 GB with the server on another one, 48 GB yes" in str(plan(whole, "flux_t2is", repository))


@pytest.mark.parametrize(("profile", "gpu", "shared"), [("gpu_24gb", 24, False), ("gpu_48gb", 48, True)])
def test_a_profile_fits_its_gpu(repository: Path, profile: str, gpu: float, shared: bool) -> None:
    """With a tenth left free."""
    params = profiles.read(repository, profile)
    found = training_memory(params, "flux_t2is", repository)
    assert found is not None
    server = server_gb(params, repository)
    assert found.together_gb + (server if shared else 0) < 0.9 * gpu and server < 0.9 * gpu
    whole = profiles.read(repository, "one_gpu")
    large = training_memory(whole, "flux_t2is", repository)
    assert large is not None and large.together_gb + (server if shared else 0) > gpu, "it is needed"
