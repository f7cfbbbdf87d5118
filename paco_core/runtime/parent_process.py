"""Processes and their children: an end with the parent, and objects that do not survive a fork."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None, number: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel send this process a signal when its parent dies, also by ``kill -9``.

    Linux only; elsewhere nothing happens. The parent is the thread that started this process.

    Args:
        parent: its process id; where it has died already, this process ends.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def validate_process(pid: int, name: str) -> None:
    """Make sure that an object is used in the process that created it: a fork has none of its threads.

    Args:
        pid: of the process that created the object.
        name: of the object's class.

    Raises:
        RuntimeError: in another process.
    """
    if os.getpid() != pid:
        raise RuntimeError(
            f"this {name} was created in process {pid}, and a fork of it (process {os.getpid()}) cannot use it; "
            f"create a {name} in the child process"
        )
