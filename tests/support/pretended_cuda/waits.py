"""How often a processor waits for the pretended GPU: what it launched until then has to end first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.pretended_cuda import copies, labels, operations
from tests.support.pretended_cuda.patching import Patches

#: Operations whose result has a size, or is a number, that only the GPU knows.
ASKING = {"_local_scalar_dense", "nonzero", "masked_select", "unique_consecutive", "_unique2", "unique_dim"}


class Waits(TorchDispatchMode):
    """``count`` of the waits so far; see :func:`waits`."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func._schema.name.rpartition("::")[2]
        tensors: list[torch.Tensor] = []
        operations._collect((*args, *kwargs.values()), tensors)
        on_gpu = [labels.gpu_of(tensor) is not None for tensor in tensors]
        by_mask = name in operations.INDEXED and any(tensor.dtype == torch.bool for tensor in tensors[1:])
        repeated = name == "repeat_interleave" and kwargs.get("output_size") is None
        across = (name in operations.ACROSS or name in operations.INDEXED) and len(set(on_gpu)) > 1
        self.count += any(on_gpu) and (name in ASKING or by_mask or repeated or across)
        return func(*args, **kwargs)


@contextmanager
def waits() -> Iterator[Waits]:
    """Within :func:`pretended`: counts copies between processor and GPU, values and sizes that are asked for."""
    found, copied, listed = Waits(), copies._copied, torch.Tensor.tolist

    def counted(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        found.count += device.type == "cuda" or device.type == "cpu"
        return copied(tensor, device)

    def as_list(tensor: torch.Tensor) -> Any:
        found.count += tensor.is_cuda
        return listed(tensor)

    with Patches() as patches, found:
        patches.set(copies, "_copied", counted)
        patches.set(torch.Tensor, "tolist", as_list)
        yield found
