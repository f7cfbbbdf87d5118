"""A CUDA machine that is pretended on a processor: real values on the CPU, tensors that carry a device ``cuda:N``.

``with pretended():`` in a test; ``environment()`` for whole processes, which load it through ``sitecustomize``. What a
GPU refuses raises here as well: operands on two devices, ``numpy()`` of a tensor on a GPU, a generator of another
device, use after a fork, collectives that the backend has not. A copy to a device is a copy. Not shown: kernels,
precision, memory, and whatever runs at the same time on a GPU.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

from tests.support import REPOSITORY
from tests.support.pretended_cuda.machine import COUNT

HERE = Path(__file__).resolve().parent


def install() -> ExitStack:
    """Pretend from here on, in this thread and in those to come; closing what is returned ends it."""
    import torch
    from torch.utils._device import _device_constructors

    from tests.support.pretended_cuda import answers, collectives, copies, draws, operations
    from tests.support.pretended_cuda.machine import MACHINE

    with ExitStack() as stack:
        for part in (copies, draws, answers, collectives, operations):
            part.install(lambda *exchange: stack.enter_context(mock.patch.object(*exchange, create=True)))
        stack.callback(_device_constructors.cache_clear)  # what `with torch.device(...)` looks for: it remembers ours
        stack.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor(..., device="cuda")` is a copy from the processor
        stack.enter_context(operations.Operations())
        stack.callback(MACHINE.forget)
        return stack.pop_all()


@contextmanager
def pretended(gpus: int = 2) -> Iterator[None]:
    """Within, this process has so many GPUs; nothing of CUDA has been used yet."""
    from tests.support.pretended_cuda.machine import MACHINE

    MACHINE.forget()
    MACHINE.count = gpus
    with install():
        yield


def environment(gpus: int = 2) -> dict[str, str]:
    """What a process needs to pretend, with ``nvidia-smi`` on its PATH; its children inherit it."""
    before = os.environ.get("PYTHONPATH")
    return {
        COUNT: str(gpus),
        "PYTHONPATH": os.pathsep.join([str(HERE / "process"), *([before] if before else []), str(REPOSITORY)]),
        "PATH": os.pathsep.join([str(HERE / "tools"), str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
