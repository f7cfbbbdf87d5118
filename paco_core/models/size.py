"""Validation of the size of a model: its configuration must match its weight files before memory is allocated.

The model is built on PyTorch's ``meta`` device, where tensors have shapes but no content. Building stops as soon as the
model has more parameters than the files can contain.
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

#: Maximum ratio of the parameters of a model to the numbers in its files: tied weights are stored once and built twice.
#: Models within this limit, and models with few parameters, are compared tensor by tensor when they are loaded.
SLACK, FEW = 2, 50_000_000
MAX_LAYERS = 10_000
_LAYERS = re.compile("layer|depth|block")


def validate_model_size(build: Callable[[], Any], stored_numbers: int, config: Path) -> None:
    """Build a model without content, and compare its size with its weight files.

    Args:
        build: builds the model from its configuration. Its exceptions are not changed.
        stored_numbers: numbers in the files, see :func:`numbers_in`. 0 = no comparison.
        config: file of the configuration.

    Raises:
        DataError: if the model has more than twice as many parameters as the files contain (and more than 50
            million), or more than 10,000 layers.
    """
    validate_layer_counts(config)
    if stored_numbers:
        message = f"{config}: its model has more parameters than the {stored_numbers:,} of its weight files"
        with _limit_parameters(max(SLACK * stored_numbers, FEW), message):
            build()


def numbers_in(file: Path) -> int:
    """Count the numbers in a safetensors file, from its header.

    Raises:
        SafetensorError: if the file is truncated, or its header does not match its length.
    """
    with safe_open(file, framework="pt") as stored:
        return sum(
            torch.Size(stored.get_slice(name).get_shape()).numel()
            for name in stored.keys()  # noqa: SIM118 - no mapping
        )


def validate_layer_counts(config: Path) -> None:
    """Validate a configuration before a library reads it, which builds lists as long as the number of layers.

    Raises:
        DataError: if a key has more than 10,000 layers, or the file is not JSON.
    """
    _validate_counts(read_json(config), config, "")


def _validate_counts(section: Any, config: Path, key: str) -> None:
    if isinstance(section, dict):
        for name, value in section.items():
            _validate_counts(value, config, f"{key}.{name}" if key else str(name))
    elif isinstance(section, int | float) and section > MAX_LAYERS and _LAYERS.search(key.rpartition(".")[2]):
        raise DataError(f"{config}: {key} is {section:g}, expected at most {MAX_LAYERS:,}")


@contextmanager
def _limit_parameters(limit: int, message: str) -> Iterator[None]:
    """Context that builds a model on ``meta`` in this thread.

    Raises:
        DataError: with the message, as soon as the model has more parameters than the limit.
    """
    thread, parameters = threading.get_ident(), 0

    def count(_module: torch.nn.Module, _name: str, parameter: torch.nn.Parameter | None) -> None:
        nonlocal parameters
        if parameter is not None and threading.get_ident() == thread:
            parameters += parameter.numel()
            if parameters > limit:
                raise DataError(message)

    hook = register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"):
            yield
    finally:
        hook.remove()
