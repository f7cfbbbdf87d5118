"""``dvc.lock`` as a whole.

DVC cuts the file and writes it anew, which takes up to half a second; a part of it is often valid YAML, too. While it
does, it holds ``.dvc/tmp/lock``: who reads under a share of that lock reads a whole file.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_SECONDS, _SETTLED_SECONDS = 0.05, 2.0


def whole_text(file: Path) -> str:
    """The text of a ``dvc.lock`` between two writings, or one that has not changed for two seconds.

    The latter because a ``dvc push`` holds the lock for as long as it takes and writes nothing.

    Raises:
        FileNotFoundError: when there is no such file.
    """
    writer = file.parent / ".dvc" / "tmp" / "lock"
    seen, since = b"", time.monotonic()
    while True:
        with _shared(writer) as quiet:
            data = file.read_bytes()
        if quiet:
            return data.decode()
        if data != seen:
            seen, since = data, time.monotonic()
        elif data and time.monotonic() - since >= _SETTLED_SECONDS:
            return data.decode()
        time.sleep(_POLL_SECONDS)


@contextmanager
def _shared(path: Path) -> Iterator[bool]:
    """Keep DVC from taking its lock, which it would try again; False when it holds it already."""
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
