"""Setup of a process that computes: its threads, its memory, and an orderly end."""

from __future__ import annotations

import ctypes
import os
import signal

from paco_core.runtime.tracking import Terminated

#: glibc's allocator gives blocks of more bytes than the first back to the kernel as soon as they are free, and others
#: where more than the second lie free at the heap's end. By default that is soon some megabytes, and each layer of a
#: decoder has its memory cleared by the kernel anew: 30% of the processor time of decoding 128 px pictures.
MAPPED_BYTES, RETAINED_BYTES = 256 << 20, 1 << 30
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def prepare_process(threads: int) -> None:
    """Set the number of threads, unless the environment has it, and let SIGTERM end the process as an exception.

    Freed memory is kept for the next layer instead of being given back, at most :data:`RETAINED_BYTES`.

    To be called before torch is imported: its libraries read the environment once. The exception lets MLflow runs end
    as KILLED.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch: large tensors in huge pages
    _keep_freed_memory()
    signal.signal(signal.SIGTERM, _on_sigterm)


def _keep_freed_memory() -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's, and musl has none
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, RETAINED_BYTES)


def _on_sigterm(_signal: int, _frame: object) -> None:
    raise Terminated
