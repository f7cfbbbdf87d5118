"""Unsupported adapters: the error contains the part that is not supported, and nothing is attached."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paco_core.adapters.reader import CONFIG, WEIGHTS
from paco_core.adapters.settings import Settings
from paco_core.io.files import DataError
from paco_core.policies import base
from tests.support import loras
from tests.support.tiny import tiny_flux

Q = "transformer_blocks.0.attn.to_q"


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return base.load_policy("flux", str(tiny_flux(tmp_path_factory.mktemp("flux") / "flux")), "cpu", "float32")


@pytest.fixture
def tensors(policy: Any) -> loras.Tensors:
    sampled = loras.random_lora(loras.sizes_of(policy.transformer, "to_q", "to_k"))
    return {key.replace(".base_layer", ""): tensor for key, tensor in sampled.items()}


def assert_rejected(policy: Any, source: Path | str, says: str) -> None:
    for load_method in (policy.load_adapter, lambda path: policy.start_from(str(path))):
        with pytest.raises(DataError, match=says):
            load_method(source)
    assert not loras.added(policy.transformer)


def with_tensor(key: str, tensor: torch.Tensor) -> Callable[[loras.Tensors], loras.Tensors]:
    return lambda written: {**written, key: tensor}


A, B = f"transformer.{Q}.lora_A.weight", f"transformer.{Q}.lora_B.weight"


def fused(written: loras.Tensors) -> loras.Tensors:
    """Also in the original names, where queries, keys and values are one layer."""
    name = "double_blocks.0.img_attn.qkv"
    return {**written, **loras.peft({f"{name}.A": torch.ones(4, 32), f"{name}.B": torch.ones(96, 4)}, "")}


def pair(a: str, b: str) -> Callable[[loras.Tensors], loras.Tensors]:
    return lambda written: {**written, a: torch.ones(4, 64), b: torch.ones(32, 4)}


HARM: dict[str, tuple[Callable[[loras.Tensors], loras.Tensors], str]] = {
    "nothing": (lambda _: {}, "no tensor"),
    "SDXL": (lambda w: {k.replace("transformer.", "unet.down.", 1): v for k, v in w.items()}, "unet.down"),
    "A without B": (with_tensor("transformer.no.lora_A.weight", torch.ones(4, 4)), "transformer.no"),
    "another width": (lambda w: {**w, A: torch.cat([w[A], w[A]], 1)}, rf"{A} .*\[4, 64\]"),
    "another rank": (lambda w: {**w, B: w[B][:, :2]}, rf"{B} .*\[32, 2\] instead of \[32, 4\]"),
    "no rank": (lambda w: {**w, A: w[A][:0], B: w[B][:, :0]}, r"\[0, 32\]"),
    "a scalar": (lambda w: {**w, A: torch.tensor(1.0)}, r"\[\]"),
    "integers": (lambda w: {**w, A: w[A].int()}, "torch.int32"),
    "NaN and infinity": (lambda w: {**w, B: w[B] / 0, A: w[A] * torch.nan}, "NaN or infinity in .* and 1 more"),
    "NaN in alpha": (with_tensor(f"transformer.{Q}.alpha", torch.tensor(torch.nan)), "NaN or infinity in .*alpha"),
    "beyond float32": (lambda w: {**w, B: torch.full_like(w[B], 1e300, dtype=torch.float64)}, f"infinity in {B}"),
    "an infinite scale": (with_tensor(f"transformer.{Q}.alpha", torch.tensor(-1e38)), f"{Q}.alpha"),
    "an infinite product": (lambda w: {**w, A: w[A] * 1e20, B: w[B] * 1e20}, A),
    "two alphas": (with_tensor(f"transformer.{Q}.alpha", torch.ones(2)), "alpha"),
    "DoRA": (with_tensor(f"transformer.{Q}.lora_magnitude_vector", torch.ones(32)), "lora_magnitude_vector"),
    "twice": (with_tensor(f"diffusion_model.{Q}.lora_A.weight", torch.ones(4, 32)), "same tensor"),
    "in two names": (fused, "twice"),
    "two adapters": (pair("x_embedder.lora_A.one.weight", "x_embedder.lora_B.two.weight"), "several"),
    "an unknown part": (pair("te3.x.lora_A.weight", "te3.x.lora_B.weight"), "te3.x.lora_A.weight"),
}


@pytest.mark.parametrize("harm", HARM)
def test_tensors_that_mean_nothing_here_are_named(
    policy: Any, tensors: loras.Tensors, tmp_path: Path, harm: str
) -> None:
    change, says = HARM[harm]
    folder = loras.write(tmp_path, change(loras.peft(tensors)))
    assert_rejected(policy, folder, says)
    with pytest.raises(DataError, match=loras.FILE):
        policy.load_adapter(folder)


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "DoRA": ({"use_dora": True}, "use_dora: True"),
    "PiSSA": ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights: 'pissa_niter_4'"),
    "CorDA": ({"init_lora_weights": "corda", "corda_config": {"a": 1}}, "corda_config.*init_lora_weights"),
    "a newer PEFT": ({"use_what_comes_next": True}, "use_what_comes_next: True"),
    "another method": ({"peft_type": "LOHA"}, "LOHA"),
    "an infinite scale": ({"lora_alpha": 1e38}, r"alpha 1e\+38, rank 4"),
    "another rank": ({"r": 8}, "8.* 4"),
    "a rank by a pattern": ({"rank_pattern": {r".*\.to_q": 2}}, "rank 2"),
    "a pattern of nothing": ({"alpha_pattern": {"layers.0": 2}}, "layers.0"),
    "layers that are none": ({"target_modules": "("}, "not the settings"),
    "an alpha that is none": ({"lora_alpha": "x"}, "not the settings"),
    "fewer layers": ({"target_modules": ["to_q"]}, "to_k"),
    "more layers": ({"target_modules": ["to_q", "to_k", "to_v"]}, "to_v"),
}


def header_of(settings: dict[str, Any]) -> dict[str, str]:
    return {"lora_adapter_metadata": json.dumps({f"transformer.{name}": value for name, value in settings.items()})}


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_that_change_what_weights_mean_are_named(
    policy: Any, tensors: loras.Tensors, tmp_path: Path, setting: str
) -> None:
    """In adapter_config.json, and in a header."""
    change, says = SETTINGS[setting]
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["to_q", "to_k"], **change}
    assert_rejected(policy, loras.write(tmp_path / "header", loras.peft(tensors), metadata=header_of(settings)), says)
    folder = loras.write(tmp_path / "file", loras.peft(tensors, "base_model.model."), WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(settings))
    assert_rejected(policy, folder, says)


def test_settings_that_mean_the_same_are_taken(policy: Any, tensors: loras.Tensors, tmp_path: Path) -> None:
    from peft import LoraConfig

    full = LoraConfig(r=4, lora_alpha=8, target_modules=["to_q", "to_k"], lora_dropout=0.1, task_type="CAUSAL_LM")
    config = Settings({**full.to_dict(), "revision": "main", "peft_version": "9", "what_comes_next": None}, tmp_path)
    assert config.alpha(Q, 4) == 8
    chosen = {"exclude_modules": r"single_.*", "layers_to_transform": [0], "layers_pattern": "transformer_blocks"}
    settings = Settings({"r": 4, "lora_alpha": 8, "target_modules": ["to_q"], **chosen}, tmp_path)
    assert settings.targets(Q) and not settings.targets(f"single_{Q}") and not settings.targets(Q.replace("0", "1"))


def test_an_alpha_that_the_settings_contradict(policy: Any, tensors: loras.Tensors, tmp_path: Path) -> None:
    written = {**loras.peft(tensors), f"transformer.{Q}.alpha": torch.tensor(4.0)}
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["to_q", "to_k"]}
    assert_rejected(policy, loras.write(tmp_path, written, metadata=header_of(settings)), "4, .* 8")


def test_a_text_encoder_is_not_trained(policy: Any, tensors: loras.Tensors, tmp_path: Path) -> None:
    texts = loras.random_lora(loras.sizes_of(policy.pipeline.text_encoder, "q_proj"))
    folder = loras.write(tmp_path, {**loras.peft(tensors), **loras.peft(texts, "text_encoder.")})
    with pytest.raises(DataError, match="text_encoder"):
        policy.start_from(str(folder))


def test_files_that_are_none(policy: Any, tensors: loras.Tensors, tmp_path: Path) -> None:
    assert_rejected(policy, tmp_path / "nothing", "nothing")
    (tmp_path / "empty").mkdir()
    assert_rejected(policy, tmp_path / "empty", "empty")
    (tmp_path / "a.bin").write_bytes(b"x")
    assert_rejected(policy, tmp_path / "a.bin", "a.bin")
    folder = loras.write(tmp_path / "two", loras.peft(tensors))
    loras.write(folder, loras.peft(tensors), "other.safetensors")
    assert_rejected(policy, folder, "other.safetensors, pytorch_lora_weights.safetensors")
    file = folder / loras.FILE
    content = file.read_bytes()
    header = int.from_bytes(content[:8], "little")
    lying = content.replace(b'"shape":[4,32]', b'"shape":[4,64]')
    for damaged in (b"", content[:4], content[: 8 + header // 2], content[:-10], content + b"more", lying):
        file.write_bytes(damaged)
        assert_rejected(policy, file, "pytorch_lora_weights.safetensors: cannot be read")
    assert_rejected(
        policy,
        loras.write(tmp_path / "h", loras.peft(tensors), metadata={"lora_adapter_metadata": "[1"}),
        "not a mapping",
    )
