"""Weights that are not whole are refused by whoever loads them, by the tensor's name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paco_core.io.files import DataError
from paco_core.models.weights import load_model, load_open_clip, validate_finite
from paco_core.policies import base
from paco_core.reward_model.network import Network
from paco_core.storybook.recogniser import Recogniser
from tests.support import tiny_vlm
from tests.support.tiny import tiny_flux

Tensors = dict[str, torch.Tensor]


def lost(tensors: Tensors, name: str) -> Tensors:
    return {key: tensor for key, tensor in tensors.items() if key != name}


def added(tensors: Tensors, name: str) -> Tensors:
    return {**tensors, "one.more": torch.ones(2)}


def nan(tensors: Tensors, name: str) -> Tensors:
    broken = tensors[name].clone()
    broken.view(-1)[-1] = torch.nan
    return {**tensors, name: broken}


def beyond_float32(tensors: Tensors, name: str) -> Tensors:
    """Finite in the file, infinite in each format that models compute in."""
    return {**tensors, name: torch.full_like(tensors[name], 1e300, dtype=torch.float64)}


HARM = {
    lost: "{name}",
    added: "one.more",
    nan: "{name}",
    beyond_float32: "{name}",
}


def harmed(folder: Path, target: Path, file: str, change: Callable[[Tensors, str], Tensors]) -> tuple[Path, str]:
    """A copy of a model whose file is harmed; the harm's name."""
    shutil.copytree(folder, target)
    tensors = load_file(target / file)
    name = min(name for name, tensor in tensors.items() if tensor.is_floating_point() and name.endswith(".weight"))
    save_file(change(tensors, name), target / file, {"format": "pt"})
    return target, name


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("weights")
    zoo = repository / "data/zoo"
    return {
        "reward": tiny_vlm.build(root / "reward"),
        "flux": tiny_flux(root / "flux"),
        "clip": zoo / "clip",
        "recogniser": zoo / "recogniser",
    }


def painter(folder: Path) -> Any:
    return base.load_policy("flux", str(folder), "cpu", "float32")


DOORS: dict[str, tuple[str, str, Callable[[Path], Any]]] = {
    "reward": ("reward", "model.safetensors", Network.load),
    "painter": ("flux", "transformer/diffusion_pytorch_model.safetensors", painter),
    "its VAE": ("flux", "vae/diffusion_pytorch_model.safetensors", painter),
    "its text encoder": ("flux", "text_encoder_2/model.safetensors", painter),
    "CLIP": ("clip", "open_clip_model.safetensors", lambda folder: load_open_clip(str(folder), "cpu")),
    "recogniser": ("recogniser", "model.safetensors", Recogniser.from_pretrained),
}


@pytest.mark.parametrize("change", HARM, ids=lambda change: change.__name__)
@pytest.mark.parametrize("door", DOORS)
def test_weights_that_are_not_whole(
    folders: dict[str, Path], tmp_path: Path, door: str, change: Callable[[Tensors, str], Tensors]
) -> None:
    model, file, load = DOORS[door]
    folder, name = harmed(folders[model], tmp_path / "model", file, change)
    with pytest.raises(DataError, match=HARM[change].format(name=name.replace(".", r"\."))) as raised:
        load(folder)
    assert str((folder / file).parent) in str(raised.value), "the part is named"


def test_numbers_that_a_format_cannot_sum_are_finite(tmp_path: Path) -> None:
    large = {"half": torch.full((100,), 60000.0, dtype=torch.float16), "eight": torch.ones(4).to(torch.float8_e4m3fn)}
    validate_finite({**large, "whole": torch.ones(3, dtype=torch.int64)}, tmp_path)
    with pytest.raises(DataError, match="eight"):
        validate_finite({"eight": torch.tensor([torch.nan]).to(torch.float8_e4m3fn)}, tmp_path)


def test_a_shape_of_another_model(folders: dict[str, Path], tmp_path: Path) -> None:
    from transformers import CLIPTextModel

    folder = shutil.copytree(folders["flux"] / "text_encoder", tmp_path / "clip")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 32}))
    with pytest.raises(DataError, match="embeddings.position_embedding.weight"):
        load_model(CLIPTextModel, folder)
