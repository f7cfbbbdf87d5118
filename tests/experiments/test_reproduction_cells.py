"""What a cell of `paco reproduce` keeps over a kill."""

from __future__ import annotations

from pathlib import Path

from paco_core.experiments.reproduction.cells import EpochSeconds


def test_a_killed_training_keeps_its_seconds(tmp_path: Path) -> None:
    path = tmp_path / "seconds.json"
    first = EpochSeconds.of(path, "key")
    first.note(1, {"seconds/sample": 2.0, "seconds/processor": 1.0, "reward/x": 9.0})
    first.note(2, {"seconds/sample": 50.0})
    again = EpochSeconds.of(path, "key")  # the second epoch was not in the checkpoint
    again.note(2, {"seconds/sample": 3.0})
    again.note(2, {"eval/64/x": 1.0})
    assert again.total("sample") == 5.0 and EpochSeconds.of(path, "key").total("sample", "processor") == 6.0
    assert EpochSeconds.of(path, "other settings").total("sample") == 0.0
