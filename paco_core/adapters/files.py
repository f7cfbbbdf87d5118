"""Where an adapter's file is, and what is in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError

from paco_core.io.files import DataError, read_json
from paco_core.models.hub import from_hub
from paco_core.models.weights import read_tensors

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # PEFT's
METADATA = "lora_adapter_metadata"  # the key of diffusers' own settings in a file's header


@dataclass(frozen=True)
class Stored:
    """An adapter as it lies there."""

    file: Path
    tensors: Mapping[str, torch.Tensor]
    metadata: Mapping[str, str]  # of the file's header
    config: Mapping[str, Any] | None  # what PEFT wrote beside it


def stored(source: str | Path) -> Stored:
    """The adapter of a folder, a file or a hub id, whose download is asked for where no such path is.

    Raises:
        DataError: when there is none, there are several, or the file is damaged.
    """
    file = _file(source)
    tensors, metadata = read_tensors(file)
    config = file.with_name(CONFIG)
    return Stored(file, tensors, metadata, _mapping(config) if file.name == WEIGHTS and config.is_file() else None)


def _mapping(path: Path) -> Mapping[str, Any]:
    given = read_json(path)
    if not isinstance(given, dict):
        raise DataError(f"{path}: not the settings of an adapter (no mapping)")
    return given


def _file(source: str | Path) -> Path:
    path = Path(source)
    if not path.exists():
        if isinstance(source, Path) or path.is_absolute():
            raise DataError(
                f"{source}: no LoRA can be loaded from there (no such path); name a folder, a safetensors file, or a "
                "model of the hub"
            )
        path = _downloaded(source)
    if path.is_file():
        if path.suffix != ".safetensors":
            raise DataError(f"{path}: not safetensors; other formats can run code when they are loaded")
        return path
    if (path / CONFIG).is_file() and not (path / WEIGHTS).is_file():
        raise DataError(f"{path}: {CONFIG} is there without {WEIGHTS}; only safetensors are read")
    found = sorted(file for file in path.glob("*.safetensors") if file.is_file())
    if len(found) != 1:
        what = "no safetensors file" if not found else f"several: {', '.join(file.name for file in found)}"
        raise DataError(f"{source}: no LoRA can be loaded from there ({what}); name the file that is meant")
    return found[0]


def _downloaded(source: str) -> Path:
    try:
        with from_hub(source):
            return Path(snapshot_download(source, allow_patterns=["*.safetensors", CONFIG], ignore_patterns=["*/*"]))
    except HFValidationError:
        raise DataError(f"{source}: no LoRA can be loaded from there (neither a path nor a model of the hub)") from None
