"""Locks of many processes at once: a look at a lock is in nobody's way, and what is locked is what lies at the path."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from dvc_project import file_locks
from dvc_project.file_locks import hold, is_held, locked, remove_unless_held, try_hold
from paco_core.serving.servers import supervisor
from tests.support.waiting import until

SECONDS = 1.0  # that processes do their worst
SPAWN = multiprocessing.get_context("spawn")


def look(path: Path, over: Event) -> None:
    while not over.is_set():
        is_held(path)


def sweep(home: Path, over: Event) -> None:
    """As a supervisor does, only more often."""
    while not over.is_set():
        supervisor.leases(home)


def count_up(path: Path, number: Path, over: Event) -> None:
    """Counts in a file under a lock whose file others remove."""
    while not over.is_set():
        with locked(path):
            number.write_text(str(int(number.read_text()) + 1))
            with number.with_name(f"{os.getpid()}").open("ab") as own:
                own.write(b"1")


def remove(path: Path, over: Event) -> None:
    while not over.is_set():
        remove_unless_held(path)


@contextmanager
def at_work(count: int, work: Callable[..., None], *args: Any) -> Iterator[None]:
    """``count`` processes that go on until the block is over."""
    over = SPAWN.Event()
    others = [SPAWN.Process(target=work, args=(*args, over), daemon=True) for _ in range(count)]
    for process in others:
        process.start()
    try:
        yield
    finally:
        over.set()
        for process in others:
            process.join(60)
    assert [process.exitcode for process in others] == [0] * count


@pytest.mark.slow
def test_who_looks_at_a_lock_is_in_nobodys_way(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    path.touch()
    times = 0
    with at_work(3, look, path):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            with hold(path):  # raises when it is held
                times += 1
                assert is_held(path)
    print(f"\nheld {times} times beside three processes that looked at it all the time")
    assert times > 20


def test_a_look_that_is_slow_is_waited_for(tmp_path: Path) -> None:
    """A process that was put aside while it looked."""
    path = tmp_path / "alive"
    path.touch()
    looking, done = threading.Event(), threading.Event()

    def slowly() -> None:
        with file_locks.shared(path):
            looking.set()
            time.sleep(0.3)
        done.set()

    thread = threading.Thread(target=slowly)
    thread.start()
    assert looking.wait(60)
    with hold(path):
        assert done.wait(60)
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


@pytest.mark.slow
def test_no_lease_is_removed_between_its_opening_and_its_lock(tmp_path: Path) -> None:
    times = 0
    with at_work(2, sweep, tmp_path):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            with hold(tmp_path / "leases" / str(times % 7)) as lease:
                assert Path(lease.name).exists() and is_held(Path(lease.name)), f"lost lease number {times}"
                times += 1
    print(f"\n{times} leases beside two supervisors that clear away all the time")
    assert times > 20


def test_a_file_that_is_removed_while_it_is_opened_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, moment by moment: the supervisor clears away between the opening and the lock."""
    flock, sweeps = file_locks.fcntl.flock, []

    def late(stream: Any, kind: int) -> None:
        if not sweeps and kind & file_locks.fcntl.LOCK_EX:
            sweeps.append(1)
            assert supervisor.leases(tmp_path) == []
        flock(stream, kind)

    monkeypatch.setattr(file_locks.fcntl, "flock", late)
    with hold(tmp_path / "leases" / "mine") as lease:
        assert sweeps and Path(lease.name).exists()
        assert supervisor.leases(tmp_path) == [Path(lease.name)]


@pytest.mark.slow
def test_a_file_that_is_never_at_its_path_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that gives a file another number each time it is asked."""
    (tmp_path / "lock").touch()
    monkeypatch.setattr(file_locks, "SHARED_S", 0.01)
    monkeypatch.setattr(file_locks, "_is_at", lambda *_: False)
    for use in (file_locks.locked, file_locks.shared):
        with pytest.raises(OSError, match="lock"), use(tmp_path / "lock"):
            pass
    with pytest.raises(OSError, match="lock"):
        file_locks.try_hold(tmp_path / "lock")


def test_a_lock_whose_file_is_removed_still_lets_one_in_at_a_time(tmp_path: Path) -> None:
    number = tmp_path / "number"
    number.write_text("0")
    lock = tmp_path / "locks" / "lock"
    with at_work(2, count_up, lock, number), at_work(2, remove, lock):
        until(lambda: number.read_text() not in ("", "0"))
        time.sleep(SECONDS)
    counted = sum(path.stat().st_size for path in tmp_path.glob("[0-9]*"))
    assert int(number.read_text()) == counted > 20
