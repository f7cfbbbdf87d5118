"""File locks (flock). The kernel releases a lock when the process that holds it ends.

:func:`is_held` takes a shared lock for a moment. A process that wants the lock can tell a shared lock from an exclusive
one, and tries again. A lock file may be removed by its holder, or by :func:`remove_unless_held`: a process that has
locked a file which is no longer at its path opens the file again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

TRIES = 1000  # after which a file that is never at its path is a fault of its file system
SHARED_S = 10.0  # that others may share a lock, one after another, before it counts as held


@contextmanager
def locked(path: Path) -> Iterator[IO[bytes]]:
    """Hold the lock of a file, opened for appending, during the block; waits for its present holder.

    Raises:
        OSError: as :func:`try_hold`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(TRIES):
        with path.open("a+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            if _is_at(stream, path):
                yield stream
                return
    raise _never_there(path)


def try_hold(path: Path, wait_s: float = 0.0) -> IO[bytes] | None:
    """The file, opened for appending and locked until the stream is closed; None if another process holds the lock.

    Args:
        wait_s: how long to wait for the other process.

    Raises:
        FileNotFoundError: when there is no folder for it.
        OSError: when its file system shows another file at the path than was opened, again and again.
    """
    start = time.monotonic()
    while True:
        stream = path.open("a+b")
        try:
            is_free, waited_s = _take(stream, fcntl.LOCK_EX), time.monotonic() - start
            if not _is_at(stream, path):
                if waited_s > SHARED_S:
                    raise _never_there(path)
            elif is_free:
                return stream
            elif waited_s >= (SHARED_S if _take(stream, fcntl.LOCK_SH) else wait_s):
                stream.close()
                return None
        except BaseException:
            stream.close()
            raise
        stream.close()  # shared by others, removed, or to be waited for
        time.sleep(0.001 * random.random() if not wait_s else 0.02)


def hold(path: Path) -> IO[bytes]:
    """The file, opened for appending and locked until the stream is closed; its folder is made.

    Raises:
        BlockingIOError: when another process holds the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if (stream := try_hold(path)) is None:
        raise BlockingIOError(errno.EAGAIN, "locked by another process", str(path))
    return stream


@contextmanager
def shared(path: Path) -> Iterator[bool]:
    """Let no process take the lock of this file during the block; False if a process holds it already.

    If there is no file, no process holds it, and none is kept out.
    """
    with _share(path) as (_, is_free):
        yield is_free


def is_held(path: Path) -> bool:
    """Does some process hold the lock of this file?"""
    with shared(path) as is_free:
        return not is_free


def remove_unless_held(path: Path) -> bool:
    """Remove a lock file if no process holds it; returns whether none did."""
    with _share(path) as (stream, is_free):
        if stream is not None and is_free:
            with _locked_folder(path.parent):  # a shared lock excludes holders, not other removers
                if _is_at(stream, path):
                    path.unlink(missing_ok=True)
        return is_free


@contextmanager
def _share(path: Path) -> Iterator[tuple[IO[bytes] | None, bool]]:
    """The file, and whether the block has its shared lock; None and True if there is no file."""
    for _ in range(TRIES):
        try:
            stream = path.open("rb")
        except FileNotFoundError:
            yield None, True
            return
        with stream:
            is_free = _take(stream, fcntl.LOCK_SH)
            if _is_at(stream, path):
                yield stream, is_free
                return
    raise _never_there(path)


@contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    """Let no other process remove lock files of a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _take(stream: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(stream, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _never_there(path: Path) -> OSError:
    return OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))


def _is_at(stream: IO[bytes], path: Path) -> bool:
    """Whether a stream's file is still the one at the path."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False
