"""Folders of models whose files lie about one another: one sentence with the file, before memory is taken for them."""

from __future__ import annotations

import json
import resource
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paco_core.io.files import DataError
from paco_core.models.weights import load_open_clip
from paco_core.policies import base
from paco_core.reward_model.scorer import Scorer
from paco_core.storybook.recogniser import Recogniser
from tests.support import tiny_vlm
from tests.support.tiny import tiny_flux

HUGE = 2**20


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> dict[str, Path]:
    root, zoo = tmp_path_factory.mktemp("sizes"), repository / "data/zoo"
    return {
        "reward": tiny_vlm.build(root / "reward"),
        "flux": tiny_flux(root / "flux"),
        "clip": zoo / "clip",
        "recogniser": zoo / "recogniser",
    }


LOAD: dict[str, Callable[[Path], Any]] = {
    "reward": Scorer,
    "flux": lambda folder: base.load_policy("flux", str(folder), "cpu", "float32"),
    "clip": lambda folder: load_open_clip(str(folder), "cpu"),
    "recogniser": Recogniser.from_pretrained,
}
#: model, file, key, value: too large for the weights, no number, out of bounds, no model
WRONG = [
    ("reward", "config.json", "text_config.hidden_size", HUGE),
    ("reward", "config.json", "text_config.hidden_size", "x"),
    ("reward", "config.json", "text_config.num_hidden_layers", 10**12),
    ("reward", "config.json", "vision_config.depth", HUGE),
    ("reward", "config.json", "vision_config.window_size", 0),
    ("reward", "processor_config.json", "image_processor.size.shortest_edge", 2**40),
    ("reward", "processor_config.json", "image_processor.image_mean", "x"),
    ("flux", "transformer/config.json", "num_attention_heads", HUGE),
    ("flux", "vae/config.json", "block_out_channels", [HUGE, HUGE]),
    ("flux", "model_index.json", "scheduler", ["diffusers", "NoSuchScheduler"]),
    ("clip", "open_clip_config.json", "model_cfg.text_cfg.width", HUGE),
    ("recogniser", "config.json", "width", HUGE),
    ("recogniser", "config.json", "vocabulary", 3),
]


@pytest.mark.parametrize(("model", "file", "key", "value"), WRONG)
def test_a_configuration_that_its_weights_do_not_bear_out(
    models: dict[str, Path], tmp_path: Path, model: str, file: str, key: str, value: Any
) -> None:
    folder = shutil.copytree(models[model], tmp_path / "model")
    tree = place = json.loads((folder / file).read_text())
    *above, name = key.split(".")
    for step in above:
        place = place[step]
    place[name] = value
    (folder / file).write_text(json.dumps(tree))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=str(folder)):
        LOAD[model](folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "less than 1 GiB was taken"


def lying(file: Path) -> None:
    """The header says that a tensor is larger than the file."""
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    next(entry for name, entry in header.items() if name != "__metadata__")["shape"] = [2**40]
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut off": lambda file: file.write_bytes(file.read_bytes()[:-9]),
    "an endless header": lambda file: file.write_bytes(struct.pack("<Q", 2**62)),
    "a header that lies": lying,
    "gone": lambda file: file.unlink(),
}
WEIGHTS = {
    "reward": "model.safetensors",
    "flux": "vae/diffusion_pytorch_model.safetensors",
    "clip": "open_clip_model.safetensors",
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("model", WEIGHTS)
def test_weights_that_are_none(models: dict[str, Path], tmp_path: Path, model: str, damage: str) -> None:
    folder = shutil.copytree(models[model], tmp_path / "model")
    DAMAGE[damage](folder / WEIGHTS[model])
    with pytest.raises(DataError, match=str((folder / WEIGHTS[model]).parent)):
        LOAD[model](folder)
