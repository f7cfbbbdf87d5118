"""DVC's own locks, as flocks of files: held by this process, or looked at."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_SECONDS = 0.02


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Be the only one in the block; waits for any other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextmanager
def held(path: Path, wait_seconds: float = 0.0) -> Iterator[bool]:
    """Hold the lock of a file during the block; False when another process has it for longer than one waits."""
    with path.open("a") as stream:
        deadline = time.monotonic() + wait_seconds
        while not (ours := _take(stream.fileno(), fcntl.LOCK_EX)) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        yield ours  # closing the file lets go


@contextmanager
def shared(path: Path) -> Iterator[bool]:
    """Keep DVC from taking its lock, which it would try again; False when it holds it already."""
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        yield True
        return
    with stream:
        yield _take(stream.fileno(), fcntl.LOCK_SH)


def _take(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
