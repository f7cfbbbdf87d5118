"""Checkpoints of a training: complete or absent, and of what the training's key names.

A checkpoint is a folder ``checkpoint-00010`` with one safetensors file and one JSON file, written under a
temporary name, synced and renamed. Older ones go only after the new one stands, so that a kill at any moment
leaves a good one behind.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from paco_core.io.atomic import atomic
from paco_core.io.files import DataError

if TYPE_CHECKING:
    import torch

TENSORS, STATE = "tensors.safetensors", "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a training needs to go on.

    Attributes:
        key: digest of what was being trained.
        done: how far it has come: epochs of a policy, optimiser steps of the reward.
        notes: what is no tensor, as JSON.
    """

    key: str
    done: int
    tensors: dict[str, torch.Tensor]
    notes: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of its folder."""
        return _name(self.done)


def _finished(folder: Path) -> list[Path]:
    """Whole checkpoints, newest first."""
    found = [place for place in folder.glob("checkpoint-*") if (place / STATE).is_file()]
    return sorted(found, key=lambda place: (len(place.name), place.name), reverse=True)  # 100000 comes after 99999


def _name(done: int) -> str:
    return f"checkpoint-{done:05d}"


def save(folder: Path, checkpoint: Checkpoint, keep: int = 1) -> None:
    """Write a checkpoint, then remove all but the newest ``keep``.

    Raises:
        OSError: when the disk is full (ENOSPC), say; the checkpoints before it are still good.
    """
    with atomic(folder / checkpoint.name, replace=True) as part:
        part.mkdir()
        save_file({n: t.detach().cpu().contiguous() for n, t in checkpoint.tensors.items()}, part / TENSORS)
        state = {"key": checkpoint.key, "done": checkpoint.done, "notes": checkpoint.notes}
        (part / STATE).write_text(json.dumps(state, allow_nan=False))
        for name in (TENSORS, STATE):
            with (part / name).open("rb") as stream:
                os.fsync(stream.fileno())
    for old in _finished(folder)[keep:]:
        shutil.rmtree(old)


def latest(folder: Path, key: str, limit: int | None = None, needed: Collection[str] = ()) -> Checkpoint | None:
    """The newest checkpoint of this key that came no further than ``limit``; None when there is none.

    Args:
        needed: names of notes that it must hold.

    Raises:
        DataError: when it is damaged, saying how to start afresh.
    """
    for place in _finished(folder):
        try:
            state = json.loads((place / STATE).read_text())
            if state["key"] != key:
                continue
            done = count(state["done"])
            if place.name != _name(done):
                raise ValueError(f"{STATE} is of {_name(done)}")
            if limit is not None and done > limit:
                continue
            notes = state["notes"]
            if not isinstance(notes, dict) or (lacking := [name for name in needed if name not in notes]):
                raise ValueError(f"{STATE}: notes hold no {lacking[0] if isinstance(notes, dict) else 'mapping'}")
            return Checkpoint(key, done, load_file(place / TENSORS), notes)
        except (OSError, KeyError, TypeError, ValueError, RecursionError, SafetensorError) as error:
            raise damaged(place, error) from None
    return None


def damaged(place: Path, error: Exception) -> DataError:
    """What to raise for a checkpoint whose content is none."""
    return DataError(f"{place}: checkpoint is damaged ({error!r}); remove it to start afresh")


def count(value: object) -> int:
    """A number of epochs or steps, as a state file holds it.

    Raises:
        ValueError: when it is none.
    """
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def pack(groups: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """``{"ema": {"a": t}}`` -> ``{"ema/a": t}``, tensors of any shape."""
    return {f"{group}/{name}": tensor for group, named in groups.items() for name, tensor in named.items()}


def unpack(tensors: Mapping[str, torch.Tensor], group: str) -> dict[str, torch.Tensor]:
    """One group of :func:`pack`, tensors of any shape."""
    prefix = f"{group}/"
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def try_to_save(save: Callable[[Path], None]) -> None:
    """Save into a folder that is removed again: what cannot be saved is found now, and not after the last epoch.

    Args:
        save: writes to the folder it is given, which is not there yet; raises where it cannot, or leaves out a tensor.
    """
    with tempfile.TemporaryDirectory(prefix="paco-adapter-") as place:
        save(Path(place) / "adapter")
