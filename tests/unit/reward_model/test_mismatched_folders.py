"""A folder whose files do not fit the model is refused by the file or the key that is missing or differs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paco_core.io.files import DataError
from paco_core.models.weights import load_open_clip
from paco_core.policies import base
from paco_core.reward_model.network import Network
from tests.support import tiny_vlm
from tests.support.tiny import tiny_flux

PREPROCESSOR, PROCESSOR, TEMPLATE = "preprocessor_config.json", "processor_config.json", "chat_template.jinja"
TEXT_ONLY = "{% for m in messages %}{{ m['content'][-1]['text'] }}{% endfor %}"


def without(*names: str) -> Callable[[Path], object]:
    return lambda folder: [(folder / name).unlink(missing_ok=True) for name in names]


def saying(name: str, **values: Any) -> Callable[[Path], object]:
    """With other values in a JSON file, and no second file that could say otherwise."""

    def change(folder: Path) -> None:
        if name == PREPROCESSOR:
            without(PROCESSOR)(folder)
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**content, **values}))

    return change


def other_mean(folder: Path) -> None:
    processor = json.loads((folder / PREPROCESSOR).read_text())
    (folder / PROCESSOR).write_text(json.dumps({"image_processor": {**processor, "image_mean": [0, 0, 0]}}))


REWARDS: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "no template": (without(TEMPLATE, "chat_template.json"), [f"{TEMPLATE} is missing"]),
    "a template of text": (lambda folder: (folder / TEMPLATE).write_text(TEXT_ONLY), [TEMPLATE, "0 times"]),
    "no tokenizer": (without("tokenizer.json", "vocab.json"), ["tokenizer.json is missing"]),
    "a damaged tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{}"), ["tokenizer.json is not"]),
    "no processor": (without(PREPROCESSOR, PROCESSOR), [f"{PREPROCESSOR} is missing"]),
    "two processors": (other_mean, [PREPROCESSOR, PROCESSOR, "image_mean"]),
    "another processor": (saying(PREPROCESSOR, image_processor_type="CLIPImageProcessor"), ["image_processor_type"]),
    "another patch": (saying(PREPROCESSOR, patch_size=16), [PREPROCESSOR, "patch_size is 16"]),
    "another merge": (saying(PREPROCESSOR, merge_size=4), [PREPROCESSOR, "merge_size is 4"]),
    "another time": (saying(PREPROCESSOR, temporal_patch_size=1), [PREPROCESSOR, "temporal_patch_size is 1"]),
    "another mark": (saying("config.json", image_token_id=3), ["tokenizer.json", "image_pad", "config.json needs 3"]),
    "another architecture": (saying("config.json", model_type="qwen2_vl"), ["qwen2_vl"]),
}


@pytest.fixture(scope="module")
def reward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vlm.build(tmp_path_factory.mktemp("reward") / "reward")


@pytest.mark.parametrize("name", REWARDS)
def test_a_reward_names_the_file_or_key_that_does_not_fit(reward: Path, tmp_path: Path, name: str) -> None:
    change, expected = REWARDS[name]
    folder = shutil.copytree(reward, tmp_path / "folder")
    change(folder)
    with pytest.raises(DataError) as refused:
        Network.load(folder)
    assert all(text in str(refused.value) for text in [str(folder), *expected]), refused.value


def test_a_template_of_the_tokenizer_is_taken(reward: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(reward, tmp_path / "folder")
    template = Network.load(reward).processor.chat_template
    without(TEMPLATE, "chat_template.json")(folder)
    saying("tokenizer_config.json", chat_template=template)(folder)
    assert Network.load(folder).processor.chat_template == template


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_flux(tmp_path_factory.mktemp("flux") / "flux")


@pytest.mark.parametrize(
    "file",
    [
        "scheduler/scheduler_config.json", "text_encoder/config.json", "text_encoder/model.safetensors",
        "tokenizer/tokenizer_config.json", "tokenizer_2/tokenizer.json", "transformer/config.json",
        "vae/diffusion_pytorch_model.safetensors",
    ],
)  # fmt: skip
def test_a_pipeline_names_the_file_that_is_missing(flux: Path, tmp_path: Path, file: str) -> None:
    folder = shutil.copytree(flux, tmp_path / "folder")
    (folder / file).unlink()
    with pytest.raises(DataError) as refused:
        base.load("flux", str(folder), "cpu", "float32")
    assert f"{(folder / file).parent}: {Path(file).name} is missing" in str(refused.value)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_clip_names_the_file_that_is_missing(repository: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(repository / "data/zoo/clip", tmp_path / "clip")
    (folder / name).unlink()
    with pytest.raises(DataError, match=f"{folder}: {name} is missing"):
        load_open_clip(str(folder), "cpu")
