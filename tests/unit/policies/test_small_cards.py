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
from paco_core.planning.memory import server_gb
from paco_core.planning.plan import plan
from paco_core.policies import base, quantised
from tests.support.tiny import tiny_flux


def test_a_transformer_comes_to_a_gpu_when_the_text_encoders_are_gone(tmp_path: Path) -> None:
    """``meta`` stands for the GPU."""
    policy: Any = base.load_policy("flux", str(tiny_flux(tmp_path / "flux")), "meta", "bfloat16")
    assert policy.pipeline.text_encoder_2.device.type == "meta" and policy.pipeline.transformer is None
    policy.drop_encoders()
    assert policy.pipeline.transformer is None
    policy.add_adapter(PolicyLora(rank=2, alpha=4), 0)
    assert policy.pipeline.transformer is policy.transformer
    assert {weight.device.type for weight in policy.transformer.parameters()} == {"meta"}
    assert {weight.dtype for weight in policy.trainable().values()} == {torch.float32}


def test_fewer_bits_are_for_a_gpu_and_of_qlora(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for profile, changes in (
        (load(repository / "params.yaml"), {"base": "nf4"}),
        (profiles.read(repository, "paper"), {"base": "fp8", "dtype": "float32"}),
    ):
        with pytest.raises(ParamsError, match=changes["base"]):
            changed(profile, {f"policies.defaults.{key}": value for key, value in changes.items()})
    monkeypatch.setattr(quantised, "find_spec", lambda _name: None)
    for name, library in (("nf4", "bitsandbytes"), ("fp8", "torchao")):
        with pytest.raises(DataError, match=library):
            quantised.transformer_quantization(name, "cuda")
    monkeypatch.setattr(quantised, "find_spec", lambda _name: object())
    monkeypatch.setattr("diffusers.BitsAndBytesConfig", dict)
    options = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.bfloat16}
    expected = {"quantization_config": options, "device_map": {"": "cuda:3"}}
    assert (
        quantised.transformer_quantization("nf4", "cuda:3") == expected
        and quantised.transformer_quantization(None, "cuda:3") == {}
    )


def test_an_adapter_fits_layers_whose_weights_are_packed(tmp_path: Path) -> None:
    """Four bits lie two in a byte, in one column."""
    trained, other = (base.load_policy("flux", str(tiny_flux(tmp_path / name)), "cpu", "float32") for name in "ab")
    trained.add_adapter(PolicyLora(rank=2, alpha=4), 0)
    trained.save_adapter(tmp_path / "adapter")
    layer = other.transformer.transformer_blocks[0].attn.to_q  # type: ignore[attr-defined]
    layer.weight = torch.nn.Parameter(torch.zeros(layer.weight.numel() // 2, 1, dtype=torch.uint8), requires_grad=False)
    other.load_adapter(tmp_path / "adapter")
    assert other.adapter("default").keys() == trained.adapter("default").keys()


def test_fewer_bits_of_the_judge_are_needed_for_klein_on_24_gb(repository: Path) -> None:
    four, eight, full = (
        changed(profiles.read(repository, "klein"), {"serving.quantization": bits})
        for bits in ("bitsandbytes", "fp8", None)
    )
    servers = [server_gb(params, repository) for params in (four, eight, full)]
    assert servers == pytest.approx([9.2, 12.1, 18.6], abs=0.1)
    fits = [str(plan(params, "flux_t2is", repository)) for params in (four, full)]
    assert "24 GB yes" in fits[0] and "24 GB with the server on another one, 48 GB yes" in fits[1]


def test_24_gb_hold_klein_and_a_qwen3_vl_4b_without_quantization(repository: Path) -> None:
    """The option of profiles/klein.yaml."""
    option = {"reward.source": "train", "reward.weights": None, "reward.base": "Qwen/Qwen3-VL-4B-Instruct"}
    four, full = (
        changed(profiles.read(repository, "klein"), {**option, "serving.quantization": bits})
        for bits in ("bitsandbytes", None)
    )
    assert [server_gb(params, repository) for params in (four, full)] == pytest.approx([5.7, 10.9], abs=0.1)
    assert "24 GB yes" in str(plan(full, "flux_t2is", repository))
