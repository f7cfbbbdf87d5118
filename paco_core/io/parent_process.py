"""Processes that end with the one that started them, whatever ends that one."""

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
