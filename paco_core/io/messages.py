"""Messages for errors of the operating system: the file, the problem, its owner, and the remedy."""

from __future__ import annotations

import difflib
import errno
import os
import pwd
import shlex
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

FULL = "free some space and run the same command again: finished outs were kept"
_REMEDIES = {
    errno.ENOSPC: ("no space left on the disk", FULL),
    errno.EDQUOT: ("your share of the disk is used up", FULL),
    errno.EROFS: ("the file system can only be read", "name a place elsewhere, or work on a copy"),
    errno.ENAMETOOLONG: ("the name is too long", "name a shorter one"),
    errno.ELOOP: ("links lead in a circle", "remove one of them"),
    errno.ENOTDIR: ("a part of the path is a file, expected a folder", "name another place, or move the file away"),
    errno.EISDIR: ("a folder, expected a file", "move it away, or name another file"),
    errno.EEXIST: ("something stands there already", "move it away, or name another place"),
    errno.ENOENT: ("no such file or folder", "was it moved or removed meanwhile?"),
    errno.EMFILE: ("too many files are open", "raise the limit (`ulimit -n 4096`)"),
    errno.EIO: ("the disk or the network behind it fails to read or write", "see the system's log"),
    errno.ESTALE: ("the network's file system has lost it", "run again"),
}

#: Errors that need no file name.
_WITHOUT_NAME = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.EROFS, errno.ENAMETOOLONG)


def sentence(error: OSError, path: Path | None = None) -> str:
    """A message for an error of the operating system."""
    place = error.filename if path is None else path
    if isinstance(place, bytes):
        place = os.fsdecode(place)
    prefix = f"{str(place)[:200]}: " if place is not None and not isinstance(place, int) else ""
    if error.errno in (errno.EACCES, errno.EPERM) and prefix:
        return f"{prefix}{permission_message(Path(str(place)))}"
    cause, remedy = _REMEDIES.get(error.errno or 0, (error.strerror or str(error), ""))
    return f"{prefix}{cause}{f'; {remedy}' if remedy else ''}"


def explain_os_error(error: Exception) -> str | None:
    """A message for an error that the system caused, not this code; None for other errors.

    Examples are unreadable files, a full disk, truncated weights and too little memory.
    """
    if isinstance(error, OSError) and error.errno is None and str(error):
        return str(error)  # a library's own words
    if isinstance(error, OSError) and (error.filename is not None or error.errno in _WITHOUT_NAME):
        return sentence(error)
    if isinstance(error, UnicodeDecodeError | UnicodeEncodeError):
        return _of_encoding(error)
    if type(error).__name__ == "SafetensorError":
        return f"weights cannot be read ({error}); the file is cut off or damaged: replace it by a complete copy"
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return f"there is not enough memory ({str(error).splitlines()[0] if str(error) else 'MemoryError'})"
    return None


def _of_encoding(error: UnicodeDecodeError | UnicodeEncodeError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"a file that it reads is not UTF-8 text ({error.reason} at byte {error.start})"
    part = error.object[max(0, error.start - 80) : error.end + 20]
    return f"{part!r} cannot be written as {error.encoding}: rename the file, or change the text"


@contextmanager
def ignore_write_errors(description: str) -> Iterator[None]:
    """Write to a cache within the block. One that cannot be written costs time later, and a line on standard error now.

    Args:
        description: the content of the cache, in the plural.
    """
    try:
        yield
    except OSError as error:
        print_once(f"{description} are not kept for later: {sentence(error)}")


@cache
def print_once(line: str) -> None:
    """Print a line on standard error, once in a process."""
    print(line, file=sys.stderr, flush=True)


def permission_message(path: Path) -> str:
    """Reason why a path, or its folder, cannot be read or written: its owner."""
    there = path
    while True:
        try:
            owner = there.lstat().st_uid
            break
        except OSError:
            if there == there.parent:
                return "permission denied"
            there = there.parent
    whose = "" if there == path else f"{there} "
    if owner == os.geteuid():
        look = f"ls -ld {shlex.quote(str(there))}"
        return f"permission denied: {whose}is yours, but its mode or its file system forbids it (`{look}`)"
    return (
        f"permission denied: {whose or 'it '}belongs to {_name(owner)}, and this runs as {_name(os.geteuid())}; "
        "work as that user, on a copy of your own, or name a place of your own"
    )


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def nearest(value: str, names: Collection[str]) -> str | None:
    """The most similar name; None if no name is similar."""
    return next(iter(difflib.get_close_matches(value, names, n=1, cutoff=0.5)), None)


def did_you_mean(value: str, names: Collection[str]) -> str:
    """``did you mean 'NAME'?`` and a space, for an error that continues with the names.

    Empty if no name is similar, or ``value`` is one of the names.
    """
    near = nearest(value, names)
    return f"did you mean {near!r}? " if near and near != value else ""
