"""Adapters of an earlier version: the same layers with the same numbers."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from peft.tuners.lora import LoraLayer
from PIL import Image
from safetensors.torch import load_file, save_file

from paco_core.policies import base
from paco_core.reward_model import lora
from paco_core.reward_model.golden import read_golden
from tests.support import tiny_vlm
from tests.support.tiny import tiny_flux

WRITTEN = Path(__file__).parent / "written"
SCALE = 2.0  # alpha 4 over rank 2


def laid_out(name: str, weights: str, folder: Path) -> Path:
    """An adapter in the earlier format, with names, shapes and metadata that lie here as text, and other numbers."""
    shutil.copytree(WRITTEN / name, folder)
    (folder / f"{weights}.json").unlink()
    stored = json.loads((WRITTEN / name / f"{weights}.json").read_text())
    tensors = {key: torch.rand(shape) for key, shape in stored["shapes"].items()}
    save_file(tensors, folder / f"{weights}.safetensors", stored["metadata"])
    return folder


def on_model(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name.replace(".default.", "."): t for name, t in model.state_dict().items() if ".lora_" in name}


def scales(model: torch.nn.Module) -> set[float]:
    return {module.scaling["default"] for module in model.modules() if isinstance(module, LoraLayer)}


def assert_equal(actual: dict[str, torch.Tensor], stored: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == stored.keys() and len(stored) > 4
    assert all(torch.equal(actual[name], stored[name]) for name in stored)


def test_a_policy_paints_with_an_earlier_adapter(tmp_path: Path) -> None:
    policy: Any = base.load_policy("flux", str(tiny_flux(tmp_path / "flux")), "cpu", "float32")
    adapter = laid_out("flux_adapter", "pytorch_lora_weights", tmp_path / "adapter")
    policy.load_adapter(adapter)
    stored = load_file(adapter / "pytorch_lora_weights.safetensors")
    assert_equal({f"transformer.{name}": t for name, t in on_model(policy.transformer).items()}, stored)
    assert scales(policy.transformer) == {SCALE}


@pytest.fixture
def reward_base(tmp_path: Path) -> Any:
    """A small base with numbers that no random generator draws: an adapter knows its base by a digest of them."""
    from transformers import Qwen2_5_VLForConditionalGeneration

    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(tiny_vlm.build(tmp_path / "vlm"))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_((torch.arange(weight.numel()) % 97 / 97).view_as(weight))
    return model


@pytest.fixture
def reward_adapter(tmp_path: Path) -> Path:
    return laid_out("reward_adapter", "adapter_model", tmp_path / "reward_adapter")


def test_an_earlier_adapter_of_the_reward_fits_its_base(reward_base: Any, reward_adapter: Path) -> None:
    loaded = lora.load_lora(reward_base, reward_adapter)
    assert_equal(on_model(loaded), load_file(reward_adapter / "adapter_model.safetensors"))
    assert scales(loaded) == {SCALE}


def test_a_server_finds_the_golden_pairs_of_an_earlier_merged_reward(tmp_path: Path) -> None:
    folder = tmp_path / "reward"
    shutil.copytree(WRITTEN / "reward_merged", folder)
    stored = json.loads((folder / "golden.json").read_text())
    (folder / "golden").mkdir()
    for pair in stored["pairs"]:
        for picture in (pair["first"], pair["second"]):
            Image.new("RGB", (8, 8)).save(folder / picture)
    golden = read_golden(folder)
    assert [pair.score for pair in golden] == [pair["score"] for pair in stored["pairs"]] and len(golden) == 4
    assert {pair.dtype for pair in golden} == {"float32"}


def test_mlflow_finds_the_module_that_loads_an_earlier_merged_reward() -> None:
    flavors = yaml.safe_load((WRITTEN / "reward_merged/MLmodel").read_text())["flavors"]
    assert callable(importlib.import_module(flavors["python_function"]["loader_module"])._load_pyfunc)
