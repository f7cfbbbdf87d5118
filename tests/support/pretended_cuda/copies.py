"""Copies between devices, which are copies here, too, and what only a tensor on the processor can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._device import DeviceContext

from tests.support.pretended_cuda import labels
from tests.support.pretended_cuda.machine import Patch

_TO, _NUMPY, _ARRAY = torch.Tensor.to, torch.Tensor.numpy, torch.Tensor.__array__
_CLONE = torch.UntypedStorage.clone


class _Moved(torch.autograd.Function):
    """A copy on another device, whose gradient goes back to where the tensor was."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        ctx.home = labels.device_of(tensor)
        return _copied(tensor, device)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return _copied(gradient, ctx.home), None


def _copied(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    from tests.support.pretended_cuda.operations import silent

    with silent():
        copy = _TO(tensor, device) if device.type == "meta" else tensor.clone()
        if device.type == "cuda":
            labels.put(copy, device.index)
    return copy


def _parsed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.device | None, dict[str, Any]]:
    """The device that ``to`` was asked for, and the rest of what it was."""
    arguments = dict(kwargs)
    left = list(args)
    device = arguments.pop("device", None)
    if "other" in arguments:
        left.insert(0, arguments.pop("other"))
    if left and isinstance(left[0], torch.Tensor):
        other = left.pop(0)
        device, arguments["dtype"] = labels.device_of(other), other.dtype
    elif left and isinstance(left[0], (str, int, torch.device)) and not isinstance(left[0], bool):
        device = left.pop(0)
    elif left and left[0] is None:
        left.pop(0)
    if left and isinstance(left[0], torch.dtype):
        arguments["dtype"] = left.pop(0)
    elif left and left[0] is None:
        left.pop(0)
    arguments |= dict(zip(("non_blocking", "copy"), left, strict=False))
    return labels.resolve_device(device), {name: value for name, value in arguments.items() if value is not None}


def _to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    device, remaining = _parsed(args, kwargs)
    here = labels.device_of(self)
    if device is None or device == here or "cuda" not in (device.type, here.type):
        options = {} if device is None or here.type == "cuda" else {"device": device}
        return _TO(self, **options, **remaining)
    if here.type == "meta":
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")
    moved = _Moved.apply(self, device) if torch.is_grad_enabled() and self.requires_grad else _copied(self, device)
    remaining.pop("copy", None)
    return _TO(moved, **remaining) if remaining else moved


def _cuda(self: torch.Tensor, device: Any = None, non_blocking: bool = False, **_: Any) -> torch.Tensor:
    return _to(self, "cuda" if device is None else device)


def _cpu(self: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return _to(self, "cpu")


def _around() -> torch.device | None:
    """That of the `with torch.device(...)` around a call."""
    modes = torch.overrides._get_current_function_mode_stack()
    return next((mode.device for mode in reversed(modes) if isinstance(mode, DeviceContext)), None)


def _made_here(make: Any, copies: bool) -> Any:
    """A constructor from values: made on the processor and copied, since no mode sees how PyTorch does it."""

    def construct(
        data: Any, *args: Any, device: Any = None, requires_grad: bool = False, **settings: Any
    ) -> torch.Tensor:
        there = isinstance(data, torch.Tensor)
        device = _around() if device is None else device
        target = labels.resolve_device(device) if device is not None or not there else labels.device_of(data)
        if target is None or (target.type != "cuda" and not (there and data.is_cuda)):
            options = {"requires_grad": True} if requires_grad else {}
            return make(data, *args, **({"device": target} if target else {}), **options, **settings)  # type: ignore[no-any-return]
        source = data if there else make(data, *args, device="cpu", **settings)
        if copies and there:
            source = source.detach().clone()
        moved = _to(source, target, settings.get("dtype"))
        return moved.requires_grad_() if requires_grad else moved

    return construct


def _new_tensor(self: torch.Tensor, data: Any, **settings: Any) -> torch.Tensor:
    return torch.tensor(data, **{"dtype": self.dtype, "device": labels.device_of(self), **settings})


def _refuse(tensor: torch.Tensor) -> None:
    if (gpu := labels.gpu_of(tensor)) is not None:
        raise TypeError(
            f"can't convert cuda:{gpu} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory "
            "first."
        )


def _numpy(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if not kwargs.get("force"):
        _refuse(self)
    return _NUMPY(self, *args, **kwargs)


def _array(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    _refuse(self)
    return _ARRAY(self, *args, **kwargs)


def _clone(self: Any) -> Any:
    """As ``copy.deepcopy`` of a tensor makes it."""
    clone = _CLONE(self)
    label = labels._labels.get(self._cdata)
    if label is not None:
        labels.put_storage(clone, label[0])
    return clone


def _pad_sequence(
    sequences: Sequence[torch.Tensor], batch_first: bool = False, value: float = 0.0, side: str = "right"
) -> torch.Tensor:
    """``pad_sequence`` by operations that are seen here. That of C++ builds its result on the device of the values."""
    longest = max(map(len, sequences))
    rows = []
    for sequence in sequences:
        padding = sequence.new_full((longest - len(sequence), *sequence.shape[1:]), value)
        rows.append(torch.cat([sequence, padding] if side == "right" else [padding, sequence]))
    return torch.stack(rows, 0 if batch_first else 1)


def install(patch: Patch) -> None:
    tensor = torch.Tensor
    patch(tensor, "device", property(labels.device_of))
    patch(tensor, "is_cuda", property(lambda self: labels.gpu_of(self) is not None))
    patch(tensor, "is_cpu", property(lambda self: labels.device_of(self).type == "cpu"))
    patch(tensor, "get_device", lambda self: -1 if (gpu := labels.gpu_of(self)) is None else gpu)
    patch(tensor, "pin_memory", lambda self, device=None: self.clone())
    patch(tensor, "new_tensor", _new_tensor)
    patch(torch, "tensor", _made_here(torch.tensor, copies=True))
    patch(torch, "as_tensor", _made_here(torch.as_tensor, copies=False))
    for name, function in (("to", _to), ("cuda", _cuda), ("cpu", _cpu), ("numpy", _numpy), ("__array__", _array)):
        patch(tensor, name, function)
    patch(torch._C._nn, "pad_sequence", _pad_sequence)
    patch(torch.UntypedStorage, "clone", _clone)
