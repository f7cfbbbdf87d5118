"""Half of one of DVC's own files, as a kill leaves it: the next run goes on, and nothing is run again."""

from __future__ import annotations

import fcntl
from pathlib import Path

import graphs
import pytest

from dagster_dvc.half_written import HALF, put_aside
from pipelines.repro import reproduce


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    root = graphs.make_chain(tmp_path / "project")
    graphs.dvc(root, "repro", "-q")
    return root


def test_half_a_lock_is_put_aside_and_its_stages_are_restored(finished: Path) -> None:
    whole = (finished / "dvc.lock").read_bytes()
    (finished / "dvc.lock").write_bytes(whole[:200])
    (finished / ".dvc/tmp/rwlock").write_text('{"a')
    said: list[str] = []
    assert reproduce(finished, 1, said.append) == 0
    assert (finished / "dvc.lock").read_bytes() == whole
    assert (finished / ".dvc/tmp" / HALF).read_bytes() == whole[:200]
    assert [line.split(" that ")[0] for line in said] == [
        "removed a half-written .dvc/tmp/rwlock", "moved a half-written dvc.lock",
    ]  # fmt: skip


@pytest.mark.parametrize("half", [b"", b"\0" * 400, b"schema: '2.0'\nstages:\n  a:\n    cmd: x\n   deps"])
def test_what_is_no_lock_is_half_of_one(finished: Path, half: bytes) -> None:
    (finished / "dvc.lock").write_bytes(half)
    assert len(put_aside(finished)) == 1 and not (finished / "dvc.lock").exists()


def test_nothing_else_is_touched(finished: Path) -> None:
    """A whole file, a merge's conflict, and what a DVC is writing just now."""
    whole = (finished / "dvc.lock").read_bytes()
    assert put_aside(finished) == []
    conflict = whole.replace(b"stages:", b"<<<<<<< ours\nstages:\n=======\n>>>>>>> theirs")
    (finished / "dvc.lock").write_bytes(conflict)
    assert put_aside(finished) == [] and (finished / "dvc.lock").read_bytes() == conflict
    (finished / "dvc.lock").write_bytes(whole[:200])
    with (finished / ".dvc/tmp/lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert put_aside(finished) == [] and (finished / "dvc.lock").exists()
