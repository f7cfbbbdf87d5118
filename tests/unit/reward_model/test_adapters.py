"""Reward adapters from elsewhere: older names, patterns, settings; what they add to each layer, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paco_core.adapters.reader import CONFIG, WEIGHTS
from paco_core.config.params import LoraParams
from paco_core.io.files import DataError
from paco_core.reward_model import lora
from paco_core.reward_model.merging import merge_adapter
from paco_core.reward_model.network import Network
from paco_core.reward_model.yes_probability import PairQuery
from tests.support import loras, reward_tiny, tiny_vlm


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vlm.build(tmp_path_factory.mktemp("adapters") / "tiny")


def older(layer: str) -> str:
    """As transformers 4 called it."""
    return layer.replace("model.language_model.layers.", "model.layers.").replace("model.visual.", "visual.")


def published(base: Path, folder: Path, ranks: dict[str, int] | None = None, **settings: Any) -> loras.Tensors:
    """An adapter of q_proj and up_proj in PEFT's layout with the older names; gives its tensors by our names."""
    sizes = {
        name: size
        for name, size in loras.sizes_of(Network.load(base).model, "q_proj", "up_proj").items()
        if "language_model" in name
    }
    tensors = loras.random_lora(sizes, {name: (ranks or {}).get(name, 4) for name in sizes})
    written = {f"base_model.model.{older(key)}": tensor for key, tensor in tensors.items()}
    loras.write(folder, loras.peft(written, ""), WEIGHTS)
    targets = r"model\.layers\.\d+\.(self_attn|mlp)\.(q_proj|up_proj)"
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": targets, "bias": "none", **settings}
    (folder / CONFIG).write_text(json.dumps(config))
    return tensors


def added(base: Path, folder: Path) -> dict[str, torch.Tensor]:
    model = Network.load(base).model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    merged = lora.load_lora(model, folder).merge_and_unload().state_dict()
    assert merged.keys() == before.keys()
    return {name: merged[name] - before[name] for name in before if not torch.equal(merged[name], before[name])}


def by_hand(tensors: loras.Tensors, scale: Any) -> dict[str, torch.Tensor]:
    layers = sorted({key[:-2] for key in tensors})
    return {f"{name}.weight": tensors[f"{name}.B"] @ tensors[f"{name}.A"] * scale(name) for name in layers}


def agree(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, delta in expected.items():
        assert torch.allclose(actual[name], delta, atol=1e-5), name


def test_patterns_in_layers_that_were_renamed_and_stabilised_scales_are_applied(base: Path, tmp_path: Path) -> None:
    wide = "model.language_model.layers.1.mlp.up_proj"
    patterns = {"alpha_pattern": {r"model\.layers\.0\.self_attn\.q_proj": 2}, "rank_pattern": {f"^{older(wide)}": 2}}
    tensors = published(base, tmp_path / "adapter", {wide: 2}, **patterns)
    scales = {"model.language_model.layers.0.self_attn.q_proj": 2 / 4, wide: 8 / 2}
    agree(added(base, tmp_path / "adapter"), by_hand(tensors, lambda name: scales.get(name, 2.0)))
    tensors = published(base, tmp_path / "stabilised", use_rslora=True)
    agree(added(base, tmp_path / "stabilised"), by_hand(tensors, lambda _name: 8 / 4**0.5))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"alpha_pattern": {"model.language_model.layers.0.self_attn.q_proj": 2}}, "matches none of its layers"),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"target_modules": ["q_proj", "up_proj"]}, "names visual.* whose tensors are missing"),
        ({"r": 8}, "has rank 8 here, and its tensors have rank 4"),
    ],
)
def test_what_is_not_taken_into_account_is_named_before_anything_is_merged(
    base: Path, tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    published(base, tmp_path / "adapter", **settings)
    queries = [PairQuery(*reward_tiny.pairs(1)[0].images, "Are they consistent?")]
    with pytest.raises(DataError, match=says):
        merge_adapter(base, tmp_path / "adapter", tmp_path / "merged", queries)
    assert not (tmp_path / "merged").exists()


def test_every_trained_tensor_is_saved_or_it_is_an_error(base: Path, tmp_path: Path) -> None:
    model = Network.load(base).model
    wrapped = lora.attach_lora(model, LoraParams(rank=2, alpha=4, targets=["q_proj"]), "base", 0)
    lora.save_lora(wrapped, tmp_path / "adapter", lora.base_digest(model))
    agree(added(base, tmp_path / "adapter"), {})  # B is zero
    model.lm_head.weight.requires_grad_(True)
    with pytest.raises(RuntimeError, match="trained tensors were saved"):
        lora.save_lora(wrapped, tmp_path / "other", lora.base_digest(model))
