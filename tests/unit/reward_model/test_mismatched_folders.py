"""A folder whose files do not fit the model is refused by the file or the key that is missing or differs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paco_core.io.files import DataError
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
    "a damaged tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{}"), ["tokenizer.json is not"]),
    "no processor": (without(PREPROCESSOR, PROCESSOR), [f"{PREPROCESSOR} is missing"]),
    "two processors": (other_mean, [PREPROCESSOR, PROCESSOR, "image_mean"]),
    "another processor": (saying(PREPROCESSOR, image_processor_type="CLIPImageProcessor"), ["image_processor_type"]),
    "another patch": (saying(PREPROCESSOR, patch_size=16), [PREPROCESSOR, "patch_size is 16"]),
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
    with pytest.raises(DataError) as raised:
        Network.load(folder)
    assert all(text in str(raised.value) for text in [str(folder), *expected]), raised.value


def test_a_template_of_the_tokenizer_is_taken(reward: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(reward, tmp_path / "folder")
    template = Network.load(reward).processor.chat_template
    without(TEMPLATE, "chat_template.json")(folder)
    saying("tokenizer_config.json", chat_template=template)(folder)
    assert Network.load(folder).processor.chat_template == template


def test_a_pipeline_names_the_file_that_is_missing(tmp_path: Path) -> None:
    flux = tiny_flux(tmp_path / "flux")
    for name in ("scheduler/scheduler_config.json", "text_encoder/model.safetensors", "tokenizer_2/tokenizer.json"):
        folder = shutil.copytree(flux, tmp_path / Path(name).stem)
        (folder / name).unlink()
        with pytest.raises(DataError) as raised:
            base.load_policy("flux", str(folder), "cpu", "float32")
        assert f"{(folder / name).parent}: {Path(name).name} is missing" in str(raised.value)
