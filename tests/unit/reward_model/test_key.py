"""A finished training of the reward answers for its own pairs, pictures and base only."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import ImageOps
from safetensors.torch import load_file, save_file

from paco_core.config.params import RewardParams
from paco_core.reward_model import lora, training
from paco_core.reward_model.examples import Example
from tests.support import reward_tiny, tiny_vlm

PARAMS = RewardParams.model_validate({**reward_tiny.PARAMS, "epochs": 1})
PAIRS, CHECK = reward_tiny.pairs(6), reward_tiny.pairs(10)[6:]
Found = tuple[dict[str, torch.Tensor], tuple[float, ...], float]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vlm.build(tmp_path_factory.mktemp("key") / "tiny")


def run(base: Path, pairs: Sequence[Example], check: Sequence[Example], out: Path, kept: Path) -> Found:
    after = training.train(base, pairs, check, PARAMS, out, kept, "code").after
    return load_file(out / training.ADAPTER / lora.WEIGHTS), after.scores, after.accuracy


@pytest.fixture(scope="module")
def kept(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the checkpoint of a finished training lies."""
    folder = tmp_path_factory.mktemp("kept")
    run(base, PAIRS, CHECK, folder / "out", folder / "checkpoints")
    return folder / "checkpoints"


def inverted(example: Example) -> Example:
    first, second = map(ImageOps.invert, example.images)
    return replace(example, images=(first, second))


def corrected(example: Example) -> Example:
    return replace(example, answer="No." if example.consistent else "Yes.")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pairs", "check"),
    [
        pytest.param(PAIRS, CHECK[:2], id="fewer validation pairs"),
        pytest.param(PAIRS, [*CHECK, *PAIRS[:2]], id="more validation pairs"),
        pytest.param(PAIRS, [corrected(e) for e in CHECK], id="corrected validation labels"),
        pytest.param(PAIRS, [inverted(e) for e in CHECK], id="other validation pictures"),
        pytest.param([inverted(e) for e in PAIRS], CHECK, id="other training pictures"),
    ],
)
def test_other_pairs_or_pictures_give_what_a_fresh_training_gives(
    base: Path, kept: Path, tmp_path: Path, pairs: Sequence[Example], check: Sequence[Example]
) -> None:
    mine = tmp_path / "kept"
    shutil.copytree(kept, mine)
    weights, scores, accuracy = run(base, pairs, check, tmp_path / "again", mine)
    fresh = run(base, pairs, check, tmp_path / "fresh", tmp_path / "none")
    assert all(torch.equal(value, weights[name]) for name, value in fresh[0].items())
    assert (scores, accuracy) == fresh[1:] and len(scores) == len(check)


def change_vision(folder: Path) -> None:
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    name = next(name for name in tensors if "visual.blocks.0" in name and name.endswith("weight"))
    save_file({**tensors, name: tensors[name] + 1}, file, {"format": "pt"})


def change_bounds(folder: Path) -> None:
    file = folder / "preprocessor_config.json"
    file.write_text(file.read_text() + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("change", [change_vision, change_bounds])
def test_a_base_with_another_tower_or_processor_is_trained_anew(
    base: Path, kept: Path, tmp_path: Path, change: Callable[[Path], Any]
) -> None:
    other, mine = tmp_path / "base", tmp_path / "kept"
    shutil.copytree(base, other)
    shutil.copytree(kept, mine)
    before = {place.name for place in mine.iterdir() if place.is_dir()}
    run(other, PAIRS, CHECK, tmp_path / "same", mine)
    assert {place.name for place in mine.iterdir() if place.is_dir()} == before, "a copy is the same base"
    change(other)
    run(other, PAIRS, CHECK, tmp_path / "other", mine)
    assert len([place for place in mine.iterdir() if place.is_dir()]) == len(before) + 1
