"""Labels of storages on a pretended GPU. Views, parameters and ``.data`` share a storage, and therefore its device.

The key of a storage is its address. No other storage gets this address while a weak reference to the storage exists.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.support.pretended_cuda.machine import MACHINE

C_DEVICE = torch._C.TensorBase.device  # type: ignore[attr-defined]
CPU = torch.device("cpu")
_PURGE = 4096  # labels between two looks for storages that are gone
_labels: dict[int, tuple[int, int]] = {}  # address -> number of the GPU, bytes
_due = _PURGE


def gpu_of(tensor: torch.Tensor) -> int | None:
    """The number of the GPU that a tensor lies on; None for every other device."""
    try:
        label = _labels.get(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # a sparse tensor, or a subclass without storage of its own
        return None
    return None if label is None else label[0]


def put(tensor: torch.Tensor, gpu: int) -> None:
    """Say that a tensor's storage lies on a GPU from here on."""
    put_storage(tensor.untyped_storage(), gpu)


def put_storage(storage: Any, gpu: int) -> None:
    global _due
    address = storage._cdata
    if address not in _labels:
        storage._weak_ref()
        _due -= 1
        if _due <= 0:
            _purge()
            _due = _PURGE
    _labels[address] = (gpu, storage.nbytes())


def _purge() -> None:
    for address in [address for address in list(_labels) if torch.UntypedStorage._expired(address)]:
        del _labels[address]
        torch.UntypedStorage._free_weak_ref(address)


def allocated(gpu: int) -> int:
    """Bytes of the storages that live on a GPU."""
    _purge()
    return sum(size for number, size in list(_labels.values()) if number == gpu)


def device_of(tensor: torch.Tensor) -> torch.device:
    gpu = gpu_of(tensor)
    return C_DEVICE.__get__(tensor) if gpu is None else torch.device("cuda", gpu)  # type: ignore[no-any-return]


def resolve_device(device: Any) -> torch.device | None:
    """A device as it was asked for, a GPU with its number."""
    if device is None:
        return None
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return torch.device("cuda", MACHINE.index(device.index)) if device.type == "cuda" else device
