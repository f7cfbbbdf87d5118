"""The pretended machine: which of its GPUs a process sees, when it first used CUDA, the current GPU of each thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

COUNT, VISIBLE = "PRETENDED_GPUS", "CUDA_VISIBLE_DEVICES"
MEMORY = 80 * 2**30
Patch = Callable[[Any, str, Any], object]  # exchanges an attribute of a class or module until the pretence ends


def uuid(number: int) -> str:
    return f"GPU-{number:08d}-0000-0000-0000-000000000000"


class Machine:
    """CUDA reads CUDA_VISIBLE_DEVICES once, at its first use; a process forked after it has no CUDA."""

    def __init__(self) -> None:
        self.count = int(os.environ.get(COUNT, "2"))
        self.current = threading.local()
        self.forget()
        os.register_at_fork(after_in_child=self._forked)

    def forget(self) -> None:
        self.read: str | None = None
        self.visible_gpus: list[int] | None = None
        self.forked = False

    def _forked(self) -> None:
        self.forked = self.visible_gpus is not None

    def use(self) -> list[int]:
        """The numbers of the GPUs that this process sees; from the first call on they are settled."""
        self.validate_not_forked()
        visible_devices = os.environ.get(VISIBLE)
        if self.visible_gpus is None:
            self.read, self.visible_gpus = visible_devices, _visible_gpus(visible_devices, self.count)
        elif visible_devices != self.read and _visible_gpus(visible_devices, self.count) != self.visible_gpus:
            raise RuntimeError(f"{VISIBLE} became {visible_devices!r} after CUDA's first use, which read {self.read!r}")
        return self.visible_gpus

    def validate_not_forked(self) -> None:
        if self.forked:
            raise RuntimeError(
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
                "'spawn' start method"
            )

    def index(self, index: int | None) -> int:
        """The number of a GPU as this process counts, where None is its thread's current one."""
        devices = self.use()
        number = getattr(self.current, "index", 0) if index is None else index
        if not devices:
            raise RuntimeError("No CUDA GPUs are available")
        if not 0 <= number < len(devices):
            raise RuntimeError(f"CUDA error: invalid device ordinal {number} of {len(devices)}")
        return number

    def choose(self, index: int) -> int:
        """Make it this thread's current GPU; the one before."""
        before = getattr(self.current, "index", 0)
        self.current.index = self.index(index)
        return before


def _visible_gpus(visible_devices: str | None, count: int) -> list[int]:
    """As CUDA reads it: up to the first word that names no GPU."""
    if visible_devices is None:
        return list(range(count))
    numbers = {name: n for n in range(count) for name in (str(n), uuid(n))}
    devices: list[int] = []
    for word in visible_devices.split(","):
        if word.strip() not in numbers:
            break
        devices.append(numbers[word.strip()])
    return devices


MACHINE = Machine()
