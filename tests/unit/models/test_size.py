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
    "flux": lambda folder: base.load("flux", str(folder), "cpu", "float32"),
    "clip": lambda folder: load_open_clip(str(folder), "cpu"),
    "recogniser": Recogniser.from_pretrained,
}
#: model, file, key, value, what the sentence says
WRONG = [
    ("reward", "config.json", "text_config.hidden_size", HUGE, "more numbers than the"),
    ("reward", "config.json", "text_config.hidden_size", "x", "no model can be made of it"),
    ("reward", "config.json", "text_config.num_hidden_layers", 10**12, "num_hidden_layers is 1e"),
    ("reward", "config.json", "vision_config.depth", HUGE, "depth is 1.0"),
    ("reward", "config.json", "vision_config.window_size", 0, "window_size is 0, expected a number from 1"),
    ("reward", "config.json", "vision_config.window_size", HUGE, "window_size is 1048576, expected"),
    ("reward", "config.json", "text_config.rope_parameters.mrope_section", [], "no model can be made of it"),
    (
        "reward",
        "processor_config.json",
        "image_processor.size.shortest_edge",
        2**40,
        "min_pixels is 1099511627776",
    ),
    ("reward", "processor_config.json", "image_processor.image_mean", "x", "differ in image_mean"),
    ("flux", "transformer/config.json", "num_attention_heads", HUGE, "more numbers than the"),
    ("flux", "transformer/config.json", "num_layers", [], "no model can be made of it"),
    ("flux", "text_encoder_2/config.json", "d_ff", 2**24, "more numbers than the"),
    ("flux", "vae/config.json", "block_out_channels", [HUGE, HUGE], "more numbers than the"),
    ("flux", "model_index.json", "scheduler", ["diffusers", "NoSuchScheduler"], "no model can be made of it"),
    ("clip", "open_clip_config.json", "model_cfg.text_cfg.width", HUGE, "more numbers than the"),
    ("clip", "open_clip_config.json", "model_cfg.embed_dim", "x", "no model can be made of it"),
    ("recogniser", "config.json", "width", HUGE, "where a whole number from 1 to"),
    ("recogniser", "config.json", "width", 2**14, "more numbers than the"),
    ("recogniser", "config.json", "vocabulary", 3, "no model can be made of it"),
]


@pytest.mark.parametrize(("model", "file", "key", "value", "said"), WRONG)
def test_a_configuration_that_its_weights_do_not_bear_out(
    models: dict[str, Path], tmp_path: Path, model: str, file: str, key: str, value: Any, said: str
) -> None:
    folder = shutil.copytree(models[model], tmp_path / "model")
    tree = place = json.loads((folder / file).read_text())
    *above, name = key.split(".")
    for step in above:
        place = place[step]
    place[name] = value
    (folder / file).write_text(json.dumps(tree))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=said) as found:
        LOAD[model](folder)
    assert str(folder) in str(found.value) and "\n" not in str(found.value)
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
    "empty": lambda file: file.write_bytes(b""),
    "an endless header": lambda file: file.write_bytes(struct.pack("<Q", 2**62)),
    "a header that lies": lying,
    "a folder": lambda file: (file.unlink(), file.mkdir()),
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
    with pytest.raises(DataError) as found:
        LOAD[model](folder)
    assert str((folder / WEIGHTS[model]).parent) in str(found.value) and "\n" not in str(found.value)
