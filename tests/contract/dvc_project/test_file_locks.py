"""File locks: a look at a lock is in nobody's way, and what is locked is what lies at the path."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dvc_project import file_locks
from dvc_project.file_locks import hold, locked, remove_unless_held, try_hold
from paco_core.serving.servers import supervisor


def test_a_look_that_is_slow_is_waited_for(tmp_path: Path) -> None:
    """A process that was put aside while it looked."""
    path = tmp_path / "alive"
    path.touch()
    looking, finished = threading.Event(), threading.Event()

    def slowly() -> None:
        with file_locks.shared(path):
            looking.set()
            time.sleep(0.3)
        finished.set()

    thread = threading.Thread(target=slowly)
    thread.start()
    assert looking.wait(60)
    with hold(path):
        assert finished.wait(60)
    thread.join()


def test_a_holder_is_told_from_a_look(tmp_path: Path) -> None:
    with hold(tmp_path / "alive"):
        assert try_hold(tmp_path / "alive") is None and not remove_unless_held(tmp_path / "alive")
        with pytest.raises(BlockingIOError):
            hold(tmp_path / "alive")
    assert remove_unless_held(tmp_path / "alive") and not (tmp_path / "alive").exists()
    assert remove_unless_held(tmp_path / "alive"), "nobody holds what is not there"
    with pytest.raises(FileNotFoundError):
        try_hold(tmp_path / "no folder" / "alive")


@pytest.mark.parametrize("lock", [hold, locked])
def test_a_file_that_is_removed_while_it_is_opened_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: Any
) -> None:
    """The supervisor clears away between the opening and the lock."""
    flock, sweeps = file_locks.fcntl.flock, []

    def late(stream: Any, kind: int) -> None:
        if not sweeps and kind & file_locks.fcntl.LOCK_EX:
            sweeps.append(1)
            assert supervisor.leases(tmp_path) == []
        flock(stream, kind)

    monkeypatch.setattr(file_locks.fcntl, "flock", late)
    with lock(tmp_path / "leases" / "mine") as lease:
        assert sweeps and Path(lease.name).exists()
        assert supervisor.leases(tmp_path) == [Path(lease.name)]
