"""The checks read a stage's figures and say what they mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from paco_core.io.files import DataError, write_json
from paco_core.reward_model.checks import merged_equals_adapter, reward_beats_base


@pytest.mark.parametrize(("difference", "passed"), [(5e-5, True), (2e-4, False)])
def test_a_merge_that_differs_does_not_pass(tmp_path: Path, difference: float, passed: bool) -> None:
    write_json(tmp_path / "m.json", {"max_abs_difference": difference, "tolerance": 1e-4, "pairs": 8.0})
    report = merged_equals_adapter(tmp_path / "m.json")
    assert report.passed is passed and report.severity == "ERROR"


@pytest.mark.parametrize(("pairs", "passed"), [(400, True), (20, False)])
def test_a_gain_counts_when_it_exceeds_its_error(tmp_path: Path, pairs: int, passed: bool) -> None:
    write_json(tmp_path / "m.json", {"base.accuracy": 0.6, "accuracy": 0.7, "pairs": pairs})
    assert reward_beats_base(tmp_path / "m.json").passed is passed


def test_figures_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"m\.json: no such file"):
        reward_beats_base(tmp_path / "m.json")
