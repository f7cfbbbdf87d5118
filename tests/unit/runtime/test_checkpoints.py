"""Checkpoints outside the outs: bounded, listed, dropped by name, and never those of a stage that runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from paco_core.io.files import DataError
from paco_core.runtime import checkpoints


def keep(root: Path, stage: str, identity: str, megabytes: int, age: int) -> Path:
    folder = checkpoints.stage_folder(root, stage) / identity
    (folder / "checkpoint-00001").mkdir(parents=True)
    file = folder / "checkpoint-00001" / "tensors.safetensors"
    file.write_bytes(b"x" * megabytes * 1_000_000)
    os.utime(file, (10_000 - age, 10_000 - age))
    return folder


def test_the_oldest_go_until_the_rest_fits(tmp_path: Path) -> None:
    old, middle, new = (keep(tmp_path, "policies@a", name, 2, age) for name, age in (("x", 30), ("y", 20), ("z", 10)))
    removed = checkpoints.prune(tmp_path, 0.0045)
    assert [checkpoint.folder for checkpoint in removed] == [old]
    assert middle.is_dir() and new.is_dir() and not old.exists()
    assert checkpoints.prune(tmp_path, 0.0045) == []


def test_a_checkpoint_that_another_process_removed_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path, "policies@a", "x", 1, 10)
    entries = checkpoints.list_checkpoints(tmp_path)
    checkpoints.prune(tmp_path, 0.0)
    monkeypatch.setattr(checkpoints, "list_checkpoints", lambda _root: entries)
    checkpoints.prune(tmp_path, 0.0)


def test_checkpoints_that_disappear_during_the_listing_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced, current = (keep(tmp_path, "policies@a", name, 1, 10) for name in ("x", "y"))
    (replaced / "checkpoint-00001" / "state.json").write_bytes(b"x")
    stat = Path.stat

    def stat_and_lose(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        result = stat(path, follow_symlinks=follow_symlinks)
        if path.parent == replaced / "checkpoint-00001":
            shutil.rmtree(path.parent)  # as a training that writes its next checkpoint
        return result

    monkeypatch.setattr(Path, "stat", stat_and_lose)
    assert {entry.folder for entry in checkpoints.list_checkpoints(tmp_path)} == {replaced, current}


def test_an_experiment_shares_those_of_its_project(tmp_path: Path) -> None:
    checkout = tmp_path / ".dvc" / "tmp" / "exps" / "temp1"
    checkout.mkdir(parents=True)
    assert checkpoints.stage_folder(checkout, "policies@a") == checkpoints.stage_folder(tmp_path, "policies@a")


def test_they_are_listed_and_dropped_by_stage(tmp_path: Path) -> None:
    keep(tmp_path, "policies@a", "0123456789abcdef", 1, 10)
    keep(tmp_path, "reward_lora", "fedcba9876543210", 3, 20)
    assert "in all 4.0 MB" in checkpoints.checkpoint_table(checkpoints.list_checkpoints(tmp_path))
    with pytest.raises(DataError, match="prompts"):
        checkpoints.drop(tmp_path, ["prompts"])
    assert [checkpoint.stage for checkpoint in checkpoints.drop(tmp_path, ["reward_lora"])] == ["reward_lora"]
    assert [checkpoint.stage for checkpoint in checkpoints.list_checkpoints(tmp_path)] == ["policies@a"]


def test_what_a_training_goes_on_with_is_neither_dropped_nor_pruned(tmp_path: Path) -> None:
    running = keep(tmp_path, "policies@b", "0123456789abcdef", 2, 30)
    idle = keep(tmp_path, "policies@a", "y", 2, 10)
    with checkpoints.exclusive_training(running):
        for stages in ([], ["policies@b"], ["policies@a", "policies@b"]):
            with pytest.raises(DataError, match=rf"policies@b .*process {os.getpid()} .*0123456789ab"):
                checkpoints.drop(tmp_path, stages)
        assert running.is_dir() and idle.is_dir(), "all or nothing"
        checkpoints.drop(tmp_path, ["policies@a"])
        assert running.is_dir() and not idle.exists()
        renewed = keep(tmp_path, "policies@a", "y", 2, 10)
        checkpoints.prune(tmp_path, 0.001)
    assert running.is_dir() and not renewed.exists()
    assert [checkpoint.folder for checkpoint in checkpoints.drop(tmp_path)] == [running]
    assert checkpoints.list_checkpoints(tmp_path) == []
