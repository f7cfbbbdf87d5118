"""Checkpoints that are complete or absent, and belong to one recipe.

A checkpoint is a folder ``epoch-00010`` with one safetensors file and one JSON file, written under a
temporary name and renamed. Older ones go only after the new one stands, so that a kill at any moment
leaves a good one behind.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from paco_core.io.files import DataError

if TYPE_CHECKING:
    import torch

TENSORS, STATE = "tensors.safetensors", "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """Everything that training needs to go on after ``epoch`` finished epochs."""

    recipe: str  # digest of what was being trained
    epoch: int
    tensors: dict[str, torch.Tensor]
    notes: dict[str, Any]


def _finished(folder: Path) -> list[Path]:
    """Whole checkpoints, newest first."""
    return sorted((p for p in folder.glob("epoch-*") if (p / STATE).is_file()), reverse=True)


def _name(epoch: int) -> str:
    return f"epoch-{epoch:05d}"


def save(folder: Path, checkpoint: Checkpoint, keep: int = 1) -> None:
    """Write a checkpoint, then remove all but the newest ``keep``.

    Raises:
        OSError: when the disk is full, say; the checkpoints before it are still good.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left_over in folder.glob(".epoch-*.part"):
        shutil.rmtree(left_over)
    target = folder / _name(checkpoint.epoch)
    part = folder / f".{target.name}.part"
    part.mkdir()
    try:
        save_file({n: t.detach().cpu().contiguous() for n, t in checkpoint.tensors.items()}, part / TENSORS)
        state = {"recipe": checkpoint.recipe, "epoch": checkpoint.epoch, "notes": checkpoint.notes}
        (part / STATE).write_text(json.dumps(state, allow_nan=False))
        for name in (TENSORS, STATE):
            with (part / name).open("rb") as stream:
                os.fsync(stream.fileno())
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        if isinstance(error, SafetensorError) and "os error 28" in str(error):  # it reports a full disk in words only
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target)) from error
        raise
    if target.exists():
        shutil.rmtree(target)
    part.rename(target)
    for old in _finished(folder)[keep:]:
        shutil.rmtree(old)


def latest(folder: Path, recipe: str, epochs: int) -> Checkpoint | None:
    """The newest checkpoint of this recipe that has at most ``epochs`` epochs; None when there is none.

    Raises:
        DataError: when the newest checkpoint of this recipe is damaged, saying how to start afresh.
    """
    for place in _finished(folder):
        try:
            state = json.loads((place / STATE).read_text())
            if state["recipe"] != recipe or state["epoch"] > epochs:
                continue
            if place.name != _name(state["epoch"]):
                raise ValueError(f"{STATE} is of epoch {state['epoch']!r}")
            return Checkpoint(recipe, state["epoch"], load_file(place / TENSORS), dict(state["notes"]))
        except (OSError, KeyError, TypeError, ValueError, RecursionError, SafetensorError) as error:
            raise DataError(f"{place}: checkpoint is damaged ({error}); remove it to start afresh") from None
    return None


def pack(groups: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """``{"ema": {"a": t}}`` -> ``{"ema/a": t}``."""
    return {f"{group}/{name}": tensor for group, named in groups.items() for name, tensor in named.items()}


def unpack(tensors: Mapping[str, torch.Tensor], group: str) -> dict[str, torch.Tensor]:
    """One group of :func:`pack`."""
    prefix = f"{group}/"
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
