"""File locks. The kernel releases them when the process that holds them ends, whatever ends it.

To see whether a lock is held, :func:`is_held` takes a share of it for a moment. Who wants the lock can distinguish a
look from a holder (a share can be had beside it, and beside a holder it cannot) and tries again. A lock file may be
removed by its holder, or by :func:`remove_unless_held`: who has locked a file that is no longer at its path, or has a
share of it, has nothing, and opens it anew.
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
LOOKED_AT_S = 10.0  # that others may go on looking at a lock, one after another, before it counts as held


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file lock; waits for its present holder.

    Raises:
        OSError: as :func:`try_hold`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(TRIES):
        with path.open("ab") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            if _is_at(stream, path):
                yield
                return
    raise _never_there(path)


def try_hold(path: Path) -> IO[bytes] | None:
    """The file, locked until the stream is closed; None when another process holds it.

    Raises:
        FileNotFoundError: when there is no folder for it.
        OSError: when its file system shows another file at the path than was opened, again and again.
    """
    deadline = time.monotonic() + LOOKED_AT_S
    while True:
        stream = path.open("ab")
        try:
            is_free, is_late = _take(stream, fcntl.LOCK_EX), time.monotonic() > deadline
            if not _is_at(stream, path):
                if is_late:
                    raise _never_there(path)
            elif is_free:
                return stream
            elif is_late or not _take(stream, fcntl.LOCK_SH):
                stream.close()
                return None
        except BaseException:
            stream.close()
            raise
        stream.close()  # somebody looked at it, or removed it: again
        time.sleep(0.001 * random.random())


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
    """Let nobody take the lock of this file within the block; False when one holds it already.

    Where there is no file, nobody holds it, and nobody is kept out.
    """
    with _share(path) as (_, free):
        yield free


def is_held(path: Path) -> bool:
    """Does some process hold the lock of this file?"""
    with shared(path) as free:
        return not free


def remove_unless_held(path: Path) -> bool:
    """Remove a lock file that nobody holds; whether nobody did. Who is about to lock it makes it anew."""
    with _share(path) as (stream, free):
        if stream is not None and free:
            with _alone_in(path.parent):  # a share keeps out those who hold, not those who remove
                if _is_at(stream, path):
                    path.unlink(missing_ok=True)
        return free


@contextmanager
def _share(path: Path) -> Iterator[tuple[IO[bytes] | None, bool]]:
    """The file, and whether the block has a share of its lock; None and True where there is no file."""
    for _ in range(TRIES):
        try:
            stream = path.open("rb")
        except FileNotFoundError:
            yield None, True
            return
        with stream:
            free = _take(stream, fcntl.LOCK_SH)
            if _is_at(stream, path):
                yield stream, free
                return
    raise _never_there(path)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Be the only one who removes lock files of a folder."""
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
