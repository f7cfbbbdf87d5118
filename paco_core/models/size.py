"""A configuration that asks for more than the files beside it hold is refused before memory is taken for it.

The model is built on PyTorch's ``meta`` device, where tensors have shapes and no content, and only for as long as what
its layers ask for can have come from the files.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.nn.modules.module import register_module_parameter_registration_hook

from paco_core.io.files import DataError, read_json

#: How many times the numbers of the files a model may have: tied weights are stored once and built twice. What fits is
#: compared tensor by tensor when it is read, and so is a model of few numbers.
SLACK, FEW = 2, 50_000_000
MOST_LAYERS = 10_000
_LAYERS = re.compile("layer|depth|block")


def refuse_larger(build: Callable[[], Any], held: int, config: Path) -> None:
    """Build a model without content, and compare it with what the files beside it hold.

    Args:
        build: makes the model by its configuration; whatever it raises passes through.
        held: numbers in the files, see :func:`numbers_in`; nothing is compared where there are none.
        config: file of the configuration.

    Raises:
        DataError: naming the configuration, when its model has more than twice the numbers that the files hold (and
            more than 50 million), or more than 10,000 layers.
    """
    refuse_many_layers(config)
    if held:
        with _at_most(max(SLACK * held, FEW), f"{config}: its model has more numbers than the {held:,} of its weights"):
            build()


def numbers_in(file: Path) -> int:
    """How many numbers a safetensors file holds, by its header.

    Raises:
        SafetensorError: when the file is cut off, or its header does not agree with its length.
    """
    with safe_open(file, framework="pt") as stored:
        return sum(
            torch.Size(stored.get_slice(name).get_shape()).numel()
            for name in stored.keys()  # noqa: SIM118 - no mapping
        )


def refuse_many_layers(config: Path) -> None:
    """Read a configuration before a library does, which makes lists as long as there are layers.

    Raises:
        DataError: naming the file and the key with more than 10,000 layers; when it is no JSON.
    """
    _refuse_many(read_json(config), config, "")


def _refuse_many(given: Any, config: Path, key: str) -> None:
    if isinstance(given, dict):
        for name, value in given.items():
            _refuse_many(value, config, f"{key}.{name}" if key else str(name))
    elif isinstance(given, int | float) and given > MOST_LAYERS and _LAYERS.search(key.rpartition(".")[2]):
        raise DataError(f"{config}: {key} is {given:g}, expected at most {MOST_LAYERS:,}")


@contextmanager
def _at_most(limit: int, message: str) -> Iterator[None]:
    """Build on ``meta`` in the block, in this thread.

    Raises:
        DataError: with the message, as soon as there are more numbers than the limit.
    """
    here, asked = threading.get_ident(), 0

    def count(_module: torch.nn.Module, _name: str, parameter: torch.nn.Parameter | None) -> None:
        nonlocal asked
        if parameter is not None and threading.get_ident() == here:
            asked += parameter.numel()
            if asked > limit:
                raise DataError(message)

    hook = register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"):
            yield
    finally:
        hook.remove()
