"""Random numbers: generators belong to a device, and each GPU has one of its own beside the processor's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import torch

from tests.support.pretended_cuda import labels
from tests.support.pretended_cuda.machine import Patch

_Generator = torch._C.Generator
_lock = threading.RLock()
_of_gpus: WeakValueDictionary[int, Any] = WeakValueDictionary()  # operations see a generator by its address alone
_states: dict[int, torch.Tensor] = {}  # of each GPU's own generator


class Generator(_Generator):  # type: ignore[misc]
    """``torch.Generator``; one of a GPU draws on the processor what it says of itself."""

    def __new__(cls, device: Any = "cpu") -> Any:
        generator = _Generator.__new__(cls)
        generator.of = labels.resolve_device(device)
        if generator.of.type == "cuda":
            _of_gpus[generator._cdata] = generator
        return generator

    def __init__(self, device: Any = "cpu") -> None:
        pass

    device = property(lambda self: self.of)


class _Kind(type):
    def __instancecheck__(cls, other: object) -> bool:
        return isinstance(other, _Generator)

    def __call__(cls, device: Any = "cpu") -> Any:
        return Generator(device)


class Replaced(metaclass=_Kind):
    """Stands where ``torch.Generator`` does: the default ones count as its instances, too."""


def refuse(kwargs: dict[str, Any], kind: str) -> None:
    """Raise for a generator of another kind of device than the numbers'."""
    generator = kwargs.get("generator")
    if generator is None:
        return
    device_type = "cuda" if generator._cdata in _of_gpus else "cpu"
    if device_type != kind:
        raise RuntimeError(f"Expected a '{kind}' device type for generator but found '{device_type}'")


@contextmanager
def of(gpu: int, kwargs: dict[str, Any]) -> Iterator[None]:
    """Draws without a generator within are those of the GPU's own, and go on where the last one left off."""
    if kwargs.get("generator") is not None:
        yield
        return
    from tests.support.pretended_cuda.operations import silent

    with _lock, silent():
        before = torch.default_generator.get_state()
        torch.default_generator.set_state(state(gpu))
        try:
            yield
        finally:
            _states[gpu] = torch.default_generator.get_state()
            torch.default_generator.set_state(before)


def state(gpu: int) -> torch.Tensor:
    if gpu not in _states:
        seed(gpu, 0)
    return _states[gpu]


def set_state(gpu: int, value: torch.Tensor) -> None:
    _states[gpu] = value.clone()


def seed(gpu: int, number: int) -> None:
    _states[gpu] = _Generator().manual_seed(number).get_state()


def install(patch: Patch) -> None:
    _states.clear()
    patch(torch, "Generator", Replaced)
