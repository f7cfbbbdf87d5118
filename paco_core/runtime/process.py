"""What a process that computes sets for itself first: its threads, and an orderly end."""

from __future__ import annotations

import os
import signal

from paco_core.runtime.tracking import Terminated


def prepare(threads: int) -> None:
    """Set the number of threads, unless the environment has it, and let SIGTERM end the process as an exception.

    To be called before torch is imported: its libraries read the environment once. The exception lets MLflow runs end
    as KILLED.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(_signal: int, _frame: object) -> None:
    raise Terminated
