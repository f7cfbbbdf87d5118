"""A training that is killed, or whose disk is full, goes on as if nothing had happened; old checkpoints go."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from safetensors import SafetensorError

from paco_core.grpo.outcome import Outcome
from tests.support import forked
from tests.support.forked import At
from tests.support.grpo_toys import figures, recipe, trainer

#: Where a kill hurts: while sampling, between two updates, while the checkpoint is written, just before and just
#: after it takes its name, while older ones are removed, and while the finished adapter is written.
KILLED_AT = {
    "sampling": At("paco_core.grpo.sampling", "sample_images", 7),
    "updating": At("paco_core.training.updates", "Updates.step", 5),
    "writing": At("paco_core.training.checkpoint", "save_file", 2),
    "renaming": At("pathlib", "Path.replace", 3),
    "renamed": At("paco_core.training.checkpoint", "_finished", 3),
    "logging": At("paco_core.grpo.trainer", "write_log", 1),
    "finishing": At("paco_core.grpo.recipe", "policy_model_card", 1),
}


def train_toy(out: Path) -> Outcome:
    return trainer().run(out, out / "checkpoint")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    out = tmp_path_factory.mktemp("whole")
    return out, train_toy(out)


@pytest.mark.slow
@pytest.mark.parametrize("moment", KILLED_AT)
def test_killed_at_any_moment_and_run_again(tmp_path: Path, moment: str, uninterrupted: tuple[Path, Outcome]) -> None:
    folder, expected = uninterrupted
    assert forked.run(lambda: train_toy(tmp_path), tmp_path, KILLED_AT[moment]).killed
    resumed = train_toy(tmp_path)
    assert figures(resumed) == figures(expected)
    for pattern in ("adapter/*", "checkpoint/*/checkpoint-00004/*.safetensors", "samples/*/*/*.png"):
        first, second = (sorted(place.glob(pattern)) for place in (tmp_path, folder))
        assert len(first) == len(second) > 0
        assert all(a.read_bytes() == b.read_bytes() for a, b in zip(first, second, strict=True))
    assert not list(tmp_path.rglob("*.part")), "nothing half-written is left"


def test_full_disk_is_told_and_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """safetensors tells a full disk in words; what is raised is the OSError that everybody knows."""
    write, calls = safetensors.torch.save_file, iter(range(1, 99))

    def full(tensors: Any, path: Path) -> None:
        if "checkpoint-00003" in str(path):
            next(calls)
            path.write_bytes(b"half")
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        write(tensors, path)

    monkeypatch.setattr("paco_core.training.checkpoint.save_file", full)
    with pytest.raises(OSError, match="checkpoint-00003") as raised:
        train_toy(tmp_path)
    assert raised.value.errno == errno.ENOSPC and next(calls) == 2
    monkeypatch.undo()
    assert [p.name for p in tmp_path.glob("checkpoint/*/checkpoint-*")] == ["checkpoint-00002"]
    resumed = train_toy(tmp_path)
    assert resumed.resumed_at == 2 and resumed.rows[-1]["epoch"] == 4


def test_retention_keeps_the_newest(tmp_path: Path) -> None:
    trainer(recipe=recipe(keep_checkpoints=2)).run(tmp_path, tmp_path / "checkpoint")
    names = sorted(path.name for path in tmp_path.glob("checkpoint/*/checkpoint-*"))
    assert names == ["checkpoint-00003", "checkpoint-00004"]
