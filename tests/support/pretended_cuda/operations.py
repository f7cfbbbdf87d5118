"""Every operation of PyTorch, as it reaches a device: refused across devices, its results put on that of its operands.

The mode that sees them belongs to a thread; threads that are started while it is installed have it as well.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.pretended_cuda import collectives, draws, labels
from tests.support.pretended_cuda.machine import MACHINE, Patch

PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
#: Copies from one device to another.
ACROSS = {"copy_", "_copy_from", "_foreach_copy_", "_to_copy"}
#: Positions may lie on the processor.
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
#: Nodes of autograd that fill the gradient of an unused output with zeros, on the device of the used ones.
FILLING = {"SplitBackward0", "SplitWithSizesBackward0", "UnbindBackward0"}
_apart = threading.local()


@contextmanager
def silent() -> Iterator[None]:
    """Operations of this thread that are not looked at."""
    before = getattr(_apart, "silent", False)
    _apart.silent = True
    try:
        yield
    finally:
        _apart.silent = before


class _Facts:
    """What is known of an operation by its declaration."""

    def __init__(self, operation: Any) -> None:
        self.name = operation._schema.name.rpartition("::")[2]
        self.across, self.indexed = self.name in ACROSS, self.name in INDEXED
        self.draws = torch.Tag.nondeterministic_seeded in operation.tags
        self.collective = operation.namespace in ("c10d", "_c10d_functional")


@cache
def _facts(operation: Any) -> _Facts:
    return _Facts(operation)


class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(_apart, "silent", False):
            return func(*args, **kwargs)
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
            return func(*args, **kwargs)  # fake tensors carry a device of their own
        tensors: list[torch.Tensor] = []
        _collect((*args, *kwargs.values()), tensors)
        if any(type(tensor) not in PLAIN for tensor in tensors):
            return NotImplemented  # its own class takes the operation apart
        facts = _facts(func)
        if facts.collective:
            collectives.refuse(facts.name, tensors)
        device = kwargs.get("device")
        target = labels.resolve_device(device) if device is not None and device.type == "cuda" else None
        numbers = [labels.gpu_of(tensor) for tensor in tensors]
        gpus = {number for number in numbers if number is not None}
        if target is None and not gpus:
            draws.refuse(kwargs, "cpu")
            output = func(*args, **kwargs)
            node = torch._C._current_autograd_node()  # type: ignore[attr-defined]
            if not tensors and node is not None and node.name() in FILLING:
                labels.put(output, MACHINE.index(None))
            return output
        MACHINE.validate_not_forked()
        if not facts.across and (len(gpus) > 1 or len(gpus) < len(set(numbers))):
            _validate_one_device(facts, tensors, numbers)
        home = target.index if target is not None else numbers[0] if facts.across else next(iter(gpus))
        if target is not None:
            kwargs = {**kwargs, "device": labels.CPU, **({"pin_memory": False} if kwargs.get("pin_memory") else {})}
        if facts.draws and home is not None:
            draws.refuse(kwargs, "cuda")
            with draws.of(home, kwargs):
                output = func(*args, **kwargs)
        else:
            output = func(*args, **kwargs)
        if home is not None:
            results: list[torch.Tensor] = []
            _collect((output,), results)
            for result in results:
                if not any(result is tensor for tensor in tensors) and labels.gpu_of(result) is None:
                    labels.put(result, home)
        return output


def _validate_one_device(facts: _Facts, tensors: list[torch.Tensor], numbers: list[int | None]) -> None:
    """Raise unless all are on one GPU; a number (no dimension) may be the processor's, and positions."""
    devices = {
        f"cuda:{gpu}" if gpu is not None else str(labels.device_of(tensor))
        for tensor, gpu in zip(tensors, numbers, strict=True)
        if gpu is not None
        or (tensor.dim() > 0 and tensor.numel() > 0 and not (facts.indexed and not tensor.is_floating_point()))
    }
    if len(devices) > 1:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(sorted(devices, reverse=True)[:2])}! (in {facts.name})"
        )


def _collect(values: Iterable[Any], into: list[torch.Tensor]) -> None:
    for value in values:
        if isinstance(value, torch.Tensor):
            into.append(value)
        elif isinstance(value, (list, tuple)):
            _collect(value, into)


def install(patch: Patch) -> None:
    run = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def with_mode(self: threading.Thread) -> None:
        torch._C._set_only_lift_cpu_tensors(True)  # of each thread, too
        with Operations():
            run(self)

    patch(threading.Thread, "_bootstrap_inner", with_mode)
