"""The scripts that measure the reward, at a tiny size: what they claim to compare is what they run."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def scripts(repository: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    monkeypatch.syspath_prepend(str(repository / "speed"))
    import reward_scoring
    import reward_training

    for name in ("reward_common", "reward_training", "reward_scoring"):
        monkeypatch.delitem(sys.modules, name)
    return reward_training, reward_scoring


def test_training_is_measured_with_and_without_either_trick(scripts: tuple[ModuleType, ModuleType]) -> None:
    training, _ = scripts
    tiny = ["--model", "tiny", "--batch", "2", "--steps", "1", "--pictures", "4", "--peak-tflops", "1"]
    args = training.parser().parse_args(tiny)
    for variant in (training.VARIANTS[0], training.VARIANTS[3]):
        row = training.measure(args, variant)
        assert row["pairs/s"] > 0 and row["peak GB"] > 0 and 0 < row["MFU"] < 1 and row["head"] == variant["head"]


def test_scoring_is_measured(scripts: tuple[ModuleType, ModuleType]) -> None:
    _, scoring = scripts
    args = scoring.parser().parse_args(["--model", "tiny", "--pairs", "4", "--pictures", "4"])
    row = scoring.measure(args, {"batch": 2})
    assert row["new pictures, pairs/s"] > 0 and row["known pictures, pairs/s"] > 0
