"""Replacements of functions in ``torch.cuda``, ``torch.accelerator`` and autocast, for the pretended machine."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch.accelerator

from tests.support.pretended_cuda import draws, labels
from tests.support.pretended_cuda.machine import MACHINE, MEMORY, Patch, uuid


def _number(device: Any = None) -> int:
    if isinstance(device, (str, torch.device)):
        device = torch.device(device).index
    return MACHINE.index(device)


class Stream:
    """Work is done when the call returns, so that nothing waits."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device, self.priority = torch.device("cuda", _number(device)), priority

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None: ...
    def wait_stream(self, _other: Stream) -> None: ...
    def wait_event(self, _event: Event) -> None: ...

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None: ...


class Event:
    def __init__(self, *_: Any, **__: Any) -> None:
        MACHINE.use()

    def query(self) -> bool:
        return True

    def record(self, _stream: Stream | None = None) -> None: ...
    def wait(self, _stream: Stream | None = None) -> None: ...
    def synchronize(self) -> None: ...


def _properties(device: Any = None) -> Any:
    number = MACHINE.use()[_number(device)]
    return SimpleNamespace(
        name="Pretended GPU", major=9, minor=0, total_memory=MEMORY, multi_processor_count=132, uuid=uuid(number),
        gcnArchName="", warp_size=32,
    )  # fmt: skip


def _memory(device: Any = None) -> int:
    return labels.allocated(_number(device))


def _free(device: Any = None) -> tuple[int, int]:
    return MEMORY - _memory(device), MEMORY


def _exchange(index: int) -> int:
    return -1 if index < 0 else MACHINE.choose(index)


def _seed_all(seed: int) -> None:
    if MACHINE.visible_gpus is not None:  # before CUDA's first use PyTorch only remembers it
        for number in range(len(MACHINE.use())):
            draws.seed(number, seed)


def _nothing(*_: Any, **__: Any) -> None:
    MACHINE.use()


@contextmanager
def _stream(_stream: Any) -> Any:
    yield


_CUDA: dict[str, Any] = {
    "is_available": lambda: bool(MACHINE.use()),
    "device_count": lambda: len(MACHINE.use()),
    "is_initialized": lambda: MACHINE.visible_gpus is not None,
    "init": _nothing,
    "_lazy_init": _nothing,
    "current_device": lambda: MACHINE.index(None),
    "set_device": lambda device: MACHINE.choose(_number(device)),
    "_exchange_device": _exchange,
    "_maybe_exchange_device": _exchange,
    "get_device_name": lambda device=None: _properties(device).name,
    "get_device_capability": lambda device=None: (9, 0),
    "get_device_properties": _properties,
    "is_bf16_supported": lambda including_emulation=True: bool(MACHINE.use()),
    "memory_allocated": _memory,
    "max_memory_allocated": _memory,
    "reset_peak_memory_stats": _nothing,
    "mem_get_info": _free,
    "empty_cache": _nothing,
    "synchronize": lambda device=None: _nothing(_number(device)),
    "Stream": Stream,
    "Event": Event,
    "current_stream": Stream,
    "stream": _stream,
    "is_current_stream_capturing": lambda: False,
    "manual_seed": lambda seed: draws.seed(MACHINE.index(None), seed),
    "manual_seed_all": _seed_all,
    "get_rng_state": lambda device=None: draws.state(_number(device)).clone(),
    "set_rng_state": lambda new_state, device=None: draws.set_state(_number(device), new_state),
}
_ACCELERATOR: dict[str, Any] = {
    "is_available": lambda: bool(MACHINE.use()),
    "device_count": lambda: len(MACHINE.use()),
    "current_accelerator": lambda check_available=False: torch.device("cuda") if MACHINE.use() else None,
    "current_device_index": lambda: MACHINE.index(None),
    "set_device_index": lambda device: MACHINE.choose(_number(device)),
    "current_stream": Stream,
    "synchronize": _nothing,
    "empty_cache": _nothing,
    "memory_allocated": _memory,
}


def install(patch: Patch) -> None:
    for module, answers in ((torch.cuda, _CUDA), (torch.accelerator, _ACCELERATOR)):
        for name, answer in answers.items():
            patch(module, name, answer)
    _autocast(patch)


def _autocast(patch: Patch) -> None:
    """The operands are the processor's, so its autocast is the one that sees them."""
    before = torch.autocast.__init__

    def here(kind: str) -> str:
        return "cpu" if torch.device(kind).type == "cuda" else kind

    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        if torch.device(device_type).type == "cuda":
            MACHINE.use()
            if not args and kwargs.get("dtype") is None:
                kwargs["dtype"] = torch.get_autocast_dtype("cuda")
        before(self, here(device_type), *args, **kwargs)

    enabled = torch.is_autocast_enabled
    patch(torch.autocast, "__init__", init)
    patch(torch, "is_autocast_enabled", lambda kind="cuda": enabled(here(kind)))
