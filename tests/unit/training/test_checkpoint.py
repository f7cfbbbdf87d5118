"""Checkpoints: whole or absent, kept as long as asked for, and never those of another key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paco_core.io.atomic import MARK
from paco_core.io.files import DataError
from paco_core.training import checkpoint
from paco_core.training.checkpoint import Checkpoint


def make(epoch: int) -> Checkpoint:
    return Checkpoint("r", epoch, {"weights/a": torch.full((2,), float(epoch))}, {"rows": []})


def test_checkpoint_round_trip_and_retention(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        checkpoint.save_checkpoint(tmp_path, make(epoch), keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-00002", "checkpoint-00003"]
    newest = checkpoint.load_latest_checkpoint(tmp_path, "r")
    assert newest is not None and newest.progress == 3
    assert torch.equal(newest.tensors["weights/a"], torch.full((2,), 3.0))
    assert checkpoint.load_latest_checkpoint(tmp_path, "another") is None


def test_full_disk_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save_checkpoint(tmp_path, make(1))

    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("paco_core.training.checkpoint.save_file", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save_checkpoint(tmp_path, make(2))
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-00001"]


def test_what_a_kill_leaves_is_no_checkpoint(tmp_path: Path) -> None:
    checkpoint.save_checkpoint(tmp_path, make(1))
    left = tmp_path / ".paco-killed.part" / "checkpoint-00002"
    left.mkdir(parents=True)
    (left.parent / MARK).touch()
    (left / "state.json").write_text(json.dumps({"key": "r"}))
    before = checkpoint.load_latest_checkpoint(tmp_path, "r")
    assert before is not None and before.progress == 1
    checkpoint.save_checkpoint(tmp_path, make(2))
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-00002"]


def test_the_newest_is_the_furthest_that_came_no_further_than_the_limit(tmp_path: Path) -> None:
    for step in (99_998, 99_999, 100_000):
        checkpoint.save_checkpoint(tmp_path, make(step), keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-100000", "checkpoint-99999"]
    limited = checkpoint.load_latest_checkpoint(tmp_path, "r", limit=99_999)
    assert limited is not None and limited.progress == 99_999
    assert checkpoint.load_latest_checkpoint(tmp_path, "r", limit=99_998) is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (checkpoint.TENSORS, b"\0" * 9), (checkpoint.STATE, b"\xff"), (checkpoint.STATE, b"[]"),
        *((checkpoint.STATE, change) for change in ({"done": True}, {"done": "3"}, {"done": 4}, {"notes": 3})),
    ],
)  # fmt: skip
def test_a_damaged_checkpoint_is_named(tmp_path: Path, name: str, content: bytes | dict[str, Any]) -> None:
    checkpoint.save_checkpoint(tmp_path, make(3))
    file = tmp_path / "checkpoint-00003" / name
    if isinstance(content, dict):
        content = json.dumps(json.loads(file.read_bytes()) | content).encode()
    file.write_bytes(content)
    with pytest.raises(DataError, match="checkpoint-00003"):
        checkpoint.load_latest_checkpoint(tmp_path, "r")


def test_groups_of_tensors_travel_by_name() -> None:
    a, b = torch.zeros(1), torch.ones(1)
    packed = checkpoint.pack({"weights": {"x/y": a}, "ema": {"x/y": b}})
    assert packed == {"weights/x/y": a, "ema/x/y": b} and checkpoint.unpack(packed, "ema") == {"x/y": b}
