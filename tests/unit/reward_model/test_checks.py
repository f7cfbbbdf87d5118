"""The checks read a stage's figures and say what they mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from paco_core.io.files import write_json
from paco_core.reward_model.checks import merged_equals_adapter, reward_beats_base


@pytest.mark.parametrize(
    ("worst", "mean", "passed"), [(5e-5, 1e-5, True), (2e-4, 1e-5, False), (9e-5, 9e-5, False), (None, 0.0, False)]
)
def test_a_merge_that_differs_does_not_pass(tmp_path: Path, worst: float | None, mean: float, passed: bool) -> None:
    allowed = {"margin.worst_allowed": 1e-4, "margin.mean_allowed": 5e-5, "pairs": 8.0}
    write_json(tmp_path / "m.json", {"margin.worst": worst, "margin.mean": mean, **allowed})
    report = merged_equals_adapter(tmp_path / "m.json")
    assert report.passed is passed and report.severity == "ERROR"


@pytest.mark.parametrize(("pairs", "passed"), [(400, True), (20, False)])
def test_a_gain_counts_when_it_exceeds_its_error(tmp_path: Path, pairs: int, passed: bool) -> None:
    write_json(tmp_path / "m.json", {"base.accuracy": 0.6, "accuracy": 0.7, "pairs": pairs})
    assert reward_beats_base(tmp_path / "m.json").passed is passed


def test_figures_that_are_missing_are_named(tmp_path: Path) -> None:
    report = reward_beats_base(tmp_path / "m.json")
    assert (report.name, report.passed, report.severity) == ("reward_beats_base", False, "ERROR")
    assert "m.json: no such file" in report.description
