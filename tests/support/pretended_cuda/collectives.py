"""Processes that work together: what NCCL and gloo take, carried out by gloo."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tests.support.pretended_cuda import labels
from tests.support.pretended_cuda.machine import Patch

#: What gloo does with tensors on a GPU.
GLOO_ON_GPUS = {"allreduce_", "broadcast_", "barrier"}
_requested: dict[str, str] = {}


def refuse(name: str, tensors: list[torch.Tensor]) -> None:
    """Raise for tensors that the backend of this process cannot carry."""
    backend = _requested.get("backend", "gloo")
    if name == "barrier" or not tensors:
        return
    on_gpus = [labels.gpu_of(tensor) is not None for tensor in tensors]
    if backend == "nccl" and not all(on_gpus):
        raise RuntimeError("No backend type associated with device type cpu")
    if backend == "gloo" and any(on_gpus) and name not in GLOO_ON_GPUS:
        raise RuntimeError(f"ProcessGroupGloo::{name}: unsupported device type cuda")


def install(patch: Patch) -> None:
    _requested.clear()
    begin, barrier, real_get_backend = dist.init_process_group, dist.barrier, dist.get_backend

    def init_process_group(backend: str | None = None, *args: Any, device_id: Any = None, **kwargs: Any) -> None:
        _requested["backend"] = backend or "cpu:gloo,cuda:nccl"
        begin("gloo", *args, **kwargs)

    def wait(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        return barrier(group, async_op)

    def get_backend(group: Any = None) -> str:
        return _requested.get("backend", real_get_backend(group))

    for module in (dist, dist.distributed_c10d):
        patch(module, "init_process_group", init_process_group)
        patch(module, "barrier", wait)
        patch(module, "get_backend", get_backend)
        patch(module, "is_nccl_available", lambda: True)
