"""File locks. The kernel releases them when the process that holds them ends, whatever ends it."""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file lock; waits for its present holder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def try_hold(path: Path) -> IO[bytes] | None:
    """The file, locked until the stream is closed; None when another process holds it.

    Raises:
        FileNotFoundError: when there is no folder for it.
    """
    stream = path.open("ab")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        return None
    return stream


def hold(path: Path) -> IO[bytes]:
    """Open and lock a file of one's own for as long as the stream stays open; its folder is made.

    Raises:
        BlockingIOError: when another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if (stream := try_hold(path)) is None:
        raise BlockingIOError(errno.EAGAIN, "locked by another process", str(path))
    return stream


@contextmanager
def shared(path: Path) -> Iterator[bool]:
    """Keep whoever would take the lock of this file out of the block; False when one holds it already."""
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        yield True
        return
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def is_held(path: Path) -> bool:
    """Does some process hold the lock of this file?"""
    with shared(path) as free:
        return not free
