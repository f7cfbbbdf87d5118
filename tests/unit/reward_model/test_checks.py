"""The checks read a stage's figures and say what they mean."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paco_core.io.files import write_json
from paco_core.reward_model.checks import merged_equals_adapter, reward_beats_base
from paco_core.reward_model.evaluation import accuracy_gain


@pytest.mark.parametrize(
    ("worst", "mean", "passed"), [(5e-5, 1e-5, True), (2e-4, 1e-5, False), (9e-5, 9e-5, False), (None, 0.0, False)]
)
def test_a_merge_that_differs_does_not_pass(tmp_path: Path, worst: float | None, mean: float, passed: bool) -> None:
    allowed = {"margin.worst_allowed": 1e-4, "margin.mean_allowed": 5e-5, "pairs": 8.0}
    write_json(tmp_path / "m.json", {"margin.worst": worst, "margin.mean": mean, **allowed})
    report = merged_equals_adapter(tmp_path / "m.json")
    assert report.passed is passed and report.severity == "ERROR"


@pytest.mark.parametrize(
    ("gain", "error", "passed", "severity"),
    [(0.1, 0.04, True, "WARN"), (0.1, 0.06, False, "WARN"), (-0.1, 0.04, False, "ERROR"), (None, None, False, "WARN")],
)
def test_a_gain_counts_when_it_exceeds_its_error(
    tmp_path: Path, gain: float | None, error: float | None, passed: bool, severity: str
) -> None:
    accuracy = {"base.accuracy": 0.6, "accuracy": 0.7, "pairs": 40.0}
    write_json(tmp_path / "m.json", {**accuracy, "accuracy_gain": gain, "accuracy_gain_error": error})
    report = reward_beats_base(tmp_path / "m.json")
    assert report.passed is passed and (passed or report.severity == severity)
    assert "lost.json" in reward_beats_base(tmp_path / "lost.json").description


def test_the_error_of_a_gain_counts_the_pairs_whose_decision_changed() -> None:
    """Ten pairs: three become right, one wrong, one has no score before training."""
    labels: list[Any] = [SimpleNamespace(consistent=True)] * 10
    before: Any = SimpleNamespace(scores=(0.1, 0.1, 0.1, 0.9, math.nan, *[0.8] * 5))
    after: Any = SimpleNamespace(scores=(0.9, 0.9, 0.9, 0.1, 0.9, *[0.8] * 5))
    gain = accuracy_gain(before, after, labels)
    assert gain == pytest.approx(
        {"accuracy_gain": 2 / 9, "accuracy_gain_error": math.sqrt(4) / 9, "accuracy_gain_missing": 1.0}
    )
    assert accuracy_gain(before, before, labels) == {
        "accuracy_gain": 0.0, "accuracy_gain_error": 0.0, "accuracy_gain_missing": 1.0,
    }  # fmt: skip
    assert math.isnan(accuracy_gain(SimpleNamespace(scores=()), SimpleNamespace(scores=()), [])["accuracy_gain"])  # type: ignore[arg-type]
