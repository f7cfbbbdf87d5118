"""One process at a time runs a stage. A stage may still run after the run that started it was killed.

DVC's own locks end with DVC; a stage lives on when DVC is killed with ``kill -9``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paco_core.io.file_locks import hold
from paco_core.io.files import DataError

LOCKS = Path(".paco") / "stages"


def lock_file(root: Path, label: str) -> Path:
    return root / LOCKS / f"{label}.lock"


@contextmanager
def only_run(root: Path, label: str) -> Iterator[None]:
    """Be the only process that runs this stage of this project.

    Raises:
        DataError: when another one does, with its process id and what to do.
    """
    path = lock_file(root, label)
    try:
        stream = hold(path)
    except BlockingIOError:
        raise DataError(_under_way(label, path)) from None
    with stream:
        stream.truncate(0)
        stream.write(f"{os.getpid()} {socket.gethostname()}".encode())
        stream.flush()
        yield


def _under_way(label: str, path: Path) -> str:
    process, _, host = path.read_text().partition(" ")
    if not process:  # it took the lock a moment ago
        return f"stage {label} has just been started by another process: wait for it, and run again"
    where = "" if host == socket.gethostname() else f" on {host}"  # a folder that a cluster shares
    return (
        f"stage {label} still runs as process {process}{where} (started by a run that was killed, perhaps): "
        f"wait for it, or end it with `kill {process}`{where}, and run again"
    )
