"""What of an adapter cannot be taken into account is named, and nothing is attached."""

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
    return base.load("flux", str(tiny_flux(tmp_path_factory.mktemp("flux") / "flux")), "cpu", "float32")


@pytest.fixture
def tensors(policy: Any) -> loras.Tensors:
    found = loras.drawn(loras.sizes_of(policy.transformer, "to_q", "to_k"))
    return {key.replace(".base_layer", ""): tensor for key, tensor in found.items()}


def refused(policy: Any, source: Path | str, says: str) -> None:
    for door in (policy.load_adapter, lambda given: policy.start_from(str(given))):
        with pytest.raises(DataError, match=says):
            door(source)
    assert not loras.added(policy.transformer)


def more(key: str, tensor: torch.Tensor) -> Callable[[loras.Tensors], loras.Tensors]:
    return lambda written: {**written, key: tensor}


def without(key: str) -> Callable[[loras.Tensors], loras.Tensors]:
    return lambda written: {name: tensor for name, tensor in written.items() if name != key}


A, B = f"transformer.{Q}.lora_A.weight", f"transformer.{Q}.lora_B.weight"


def fused(written: loras.Tensors) -> loras.Tensors:
    """Also in the original names, where queries, keys and values are one layer."""
    name = "double_blocks.0.img_attn.qkv"
    return {**written, **loras.peft({f"{name}.A": torch.ones(4, 32), f"{name}.B": torch.ones(96, 4)}, "")}


def pair(a: str, b: str) -> Callable[[loras.Tensors], loras.Tensors]:
    return lambda written: {**written, a: torch.ones(4, 64), b: torch.ones(32, 4)}


FLAT = Q.replace(".", "_")
HARM: dict[str, tuple[Callable[[loras.Tensors], loras.Tensors], str]] = {
    "nothing": (lambda _: {}, "holds no tensor"),
    "SDXL": (lambda w: {k.replace("transformer.", "unet.down.", 1): v for k, v in w.items()}, "has unet.down"),
    "A alone": (more("transformer.no.lora_A.weight", torch.ones(4, 4)), "lacks the B that belongs to transformer.no"),
    "a missing B": (without(B), f"lacks the B that belongs to {A}"),
    "another width": (lambda w: {**w, A: torch.cat([w[A], w[A]], 1)}, rf"{A} has the shape \[4, 64\] instead of"),
    "another rank": (lambda w: {**w, B: w[B][:, :2]}, rf"{B} has the shape \[32, 2\] instead of \[32, 4\]"),
    "no rank": (lambda w: {**w, A: w[A][:0], B: w[B][:, :0]}, r"has the shape \[0, 32\]"),
    "a scalar": (lambda w: {**w, A: torch.tensor(1.0)}, r"has the shape \[\]"),
    "integers": (lambda w: {**w, A: w[A].int()}, "of torch.int32"),
    "NaN": (lambda w: {**w, A: w[A] * torch.nan}, f"NaN or infinity in {A}"),
    "infinity": (lambda w: {**w, B: w[B] / 0, A: w[A] / 0}, "NaN or infinity in .* and 1 more"),
    "NaN in alpha": (more(f"transformer.{Q}.alpha", torch.tensor(torch.nan)), "NaN or infinity in .*alpha"),
    "beyond float32": (lambda w: {**w, B: torch.full_like(w[B], 1e300, dtype=torch.float64)}, f"infinity in {B}"),
    "an infinite scale": (more(f"transformer.{Q}.alpha", torch.tensor(-1e38)), f"{Q}.alpha changes weights by up to"),
    "an infinite product": (lambda w: {**w, A: w[A] * 1e20, B: w[B] * 1e20}, f"{A} changes weights by up to"),
    "two alphas": (more(f"transformer.{Q}.alpha", torch.ones(2)), "and not one number"),
    "DoRA": (more(f"transformer.{Q}.lora_magnitude_vector", torch.ones(32)), "lora_magnitude_vector is none of the"),
    "kohya's DoRA": (more(f"lora_unet_{FLAT}.dora_scale", torch.ones(32)), "dora_scale is none of"),
    "a bias": (more(f"transformer.{Q}.lora_B.bias", torch.ones(32)), "lora_B.bias is none of the tensors"),
    "a norm": (more("transformer.transformer_blocks.0.attn.norm_q.weight", torch.ones(16)), "norm_q.weight is none"),
    "a difference": (more(f"diffusion_model.{Q}.diff_b", torch.ones(32)), "diff_b is none of the tensors"),
    "LoKr": (more(f"lycoris_{Q}.lokr_w1", torch.ones(2, 2)), "lokr_w1 is none of the tensors"),
    "twice": (more(f"diffusion_model.{Q}.lora_A.weight", torch.ones(4, 32)), "name the same tensor"),
    "in two names": (fused, "is there twice"),
    "two adapters": (pair("x_embedder.lora_A.one.weight", "x_embedder.lora_B.two.weight"), "holds several adapters"),
    "an unknown part": (pair("te3.x.lora_A.weight", "te3.x.lora_B.weight"), "has te3.x.lora_A.weight, which no layer"),
}


@pytest.mark.parametrize("harm", HARM)
def test_tensors_that_mean_nothing_here_are_named(
    policy: Any, tensors: loras.Tensors, tmp_path: Path, harm: str
) -> None:
    change, says = HARM[harm]
    folder = loras.write(tmp_path, change(loras.peft(tensors)))
    refused(policy, folder, says)
    with pytest.raises(DataError, match=loras.FILE):
        policy.load_adapter(folder)


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "DoRA": ({"use_dora": True}, "use_dora: True"),
    "a bias": ({"bias": "all"}, "bias: 'all'"),
    "a bias of LoRA": ({"lora_bias": True}, "lora_bias: True"),
    "other modules": ({"modules_to_save": ["proj_out"]}, "modules_to_save"),
    "fan in, fan out": ({"fan_in_fan_out": True}, "fan_in_fan_out"),
    "layers again": ({"layer_replication": [[0, 1]]}, "layer_replication"),
    "tokens": ({"trainable_token_indices": [1]}, "trainable_token_indices"),
    "PiSSA": ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights: 'pissa_niter_4'"),
    "CorDA": ({"init_lora_weights": "corda", "corda_config": {"a": 1}}, "corda_config.*init_lora_weights"),
    "LoftQ": ({"loftq_config": {"loftq_bits": 4}}, "loftq_config"),
    "EVA": ({"init_lora_weights": "eva"}, "init_lora_weights: 'eva'"),
    "Megatron": ({"megatron_config": {"a": 1}}, "megatron_config"),
    "parameters": ({"target_parameters": ["x"]}, "target_parameters"),
    "a newer PEFT": ({"use_what_comes_next": True}, "use_what_comes_next: True"),
    "another method": ({"peft_type": "LOHA"}, "peft_type is 'LOHA'"),
    "an infinite scale": ({"lora_alpha": 1e38}, r"changes weights by up to .* \(alpha 1e\+38, rank 4\)"),
    "another rank": ({"r": 8}, "has rank 8 here, and its tensors have rank 4"),
    "a rank by a pattern": ({"rank_pattern": {r".*\.to_q": 2}}, "has rank 2 here"),
    "a pattern of nothing": ({"alpha_pattern": {"layers.0": 2}}, "pattern 'layers.0' matches none"),
    "layers that are none": ({"target_modules": "("}, "not the settings of a LoRA"),
    "a pattern that is none": ({"alpha_pattern": {"(": 2}}, "not the settings of a LoRA"),
    "no rank": ({"r": 0}, "not the settings of a LoRA"),
    "an alpha that is none": ({"lora_alpha": "x"}, "not the settings of a LoRA"),
    "fewer layers": ({"target_modules": ["to_q"]}, "does not name .*to_k, whose tensors are there"),
    "more layers": ({"target_modules": ["to_q", "to_k", "to_v"]}, "names .*to_v, whose tensors are missing"),
}


@pytest.mark.parametrize("header", [False, True], ids=["adapter_config.json", "header"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_that_change_what_weights_mean_are_named(
    policy: Any, tensors: loras.Tensors, tmp_path: Path, setting: str, header: bool
) -> None:
    change, says = SETTINGS[setting]
    given = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["to_q", "to_k"], **change}
    if header:
        metadata = {
            "lora_adapter_metadata": json.dumps({f"transformer.{name}": value for name, value in given.items()})
        }
        loras.write(tmp_path, loras.peft(tensors), metadata=metadata)
    else:
        loras.write(tmp_path, loras.peft(tensors, "base_model.model."), WEIGHTS)
        (tmp_path / CONFIG).write_text(json.dumps(given))
    refused(policy, tmp_path, says)


def test_settings_that_mean_the_same_are_taken(policy: Any, tensors: loras.Tensors, tmp_path: Path) -> None:
    from peft import LoraConfig

    full = LoraConfig(r=4, lora_alpha=8, target_modules=["to_q", "to_k"], lora_dropout=0.1, task_type="CAUSAL_LM")
    config = Settings({**full.to_dict(), "revision": "main", "peft_version": "9", "what_comes_next": None}, tmp_path)
    assert config.alpha(Q, 4) == 8
    chosen = {"exclude_modules": r"single_.*", "layers_to_transform": [0], "layers_pattern": "transformer_blocks"}
    kept = Settings({"r": 4, "lora_alpha": 8, "target_modules": ["to_q"], **chosen}, tmp_path)
    assert kept.targets(Q) and not kept.targets(f"single_{Q}") and not kept.targets(Q.replace("0", "1"))


def test_an_alpha_that_the_settings_contradict(policy: Any, tensors: loras.Tensors, tmp_path: Path) -> None:
    written = {**loras.peft(tensors), f"transformer.{Q}.alpha": torch.tensor(4.0)}
    given = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["to_q", "to_k"]}
    header = {"lora_adapter_metadata": json.dumps({f"transformer.{name}": value for name, value in given.items()})}
    refused(policy, loras.write(tmp_path, written, metadata=header), "alpha is 4, and its settings say 8")


def test_a_text_encoder_is_not_trained(policy: Any, tensors: loras.Tensors, tmp_path: Path) -> None:
    texts = loras.drawn(loras.sizes_of(policy.pipeline.text_encoder, "q_proj"))
    folder = loras.write(tmp_path, {**loras.peft(tensors), **loras.peft(texts, "text_encoder.")})
    with pytest.raises(
        DataError, match="text_encoder.*and 1 more are of the text_encoder; here an adapter can change the"
    ):
        policy.start_from(str(folder))


def test_files_that_are_none(policy: Any, tensors: loras.Tensors, tmp_path: Path) -> None:
    refused(policy, tmp_path / "nothing", "no such path")
    refused(policy, str(tmp_path / "nothing"), "no such path")
    (tmp_path / "empty").mkdir()
    refused(policy, tmp_path / "empty", "no safetensors file")
    (tmp_path / "a.bin").write_bytes(b"x")
    refused(policy, tmp_path / "a.bin", "not safetensors")
    folder = loras.write(tmp_path / "two", loras.peft(tensors))
    loras.write(folder, loras.peft(tensors), "other.safetensors")
    refused(policy, folder, "several: other.safetensors, pytorch_lora_weights.safetensors")
    file = folder / loras.FILE
    whole = file.read_bytes()
    header = int.from_bytes(whole[:8], "little")
    for cut in (b"", whole[:4], whole[: 8 + header // 2], whole[:-10], whole + b"more"):
        file.write_bytes(cut)
        refused(policy, file, r"pytorch_lora_weights.safetensors: cannot be read .*replace it with a complete copy")
    file.write_bytes(whole.replace(b'"shape":[4,32]', b'"shape":[4,64]'))  # a header that lies
    refused(policy, file, "cannot be read")
    refused(
        policy,
        loras.write(tmp_path / "h", loras.peft(tensors), metadata={"lora_adapter_metadata": "[1"}),
        "not a mapping",
    )
