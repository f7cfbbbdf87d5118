"""Checkpoints of a training, each complete or absent, identified by the key of the training.

A checkpoint is a folder ``checkpoint-00010`` with one safetensors file and one JSON file, which is written under a
temporary name, synced and renamed. Older checkpoints are removed after the new one is complete, so a kill at any moment
leaves a valid checkpoint.
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
    """The state of a training, to resume it.

    Attributes:
        key: digest of the inputs of the training.
        progress: number of finished epochs of a policy, or optimizer steps of a reward model.
        notes: state that is not a tensor, as JSON.
    """

    key: str
    progress: int
    tensors: dict[str, torch.Tensor]
    notes: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of its folder."""
        return _name(self.progress)


def _finished(folder: Path) -> list[Path]:
    """Complete checkpoints, newest first."""
    checkpoints = [place for place in folder.glob("checkpoint-*") if (place / STATE).is_file()]
    return sorted(
        checkpoints, key=lambda place: (len(place.name), place.name), reverse=True
    )  # 100000 comes after 99999


def _name(progress: int) -> str:
    return f"checkpoint-{progress:05d}"


def save_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int = 1) -> None:
    """Write a checkpoint, then remove all but the newest ``keep``.

    Raises:
        OSError: for example, if the disk is full (ENOSPC). Earlier checkpoints are still valid.
    """
    with atomic(folder / checkpoint.name, replace=True) as part:
        part.mkdir()
        save_file({n: t.detach().cpu().contiguous() for n, t in checkpoint.tensors.items()}, part / TENSORS)
        state = {"key": checkpoint.key, "done": checkpoint.progress, "notes": checkpoint.notes}
        (part / STATE).write_text(json.dumps(state, allow_nan=False))
        for name in (TENSORS, STATE):
            with (part / name).open("rb") as stream:
                os.fsync(stream.fileno())
    for old in _finished(folder)[keep:]:
        shutil.rmtree(old)


def load_latest_checkpoint(
    folder: Path, key: str, limit: int | None = None, required: Collection[str] = ()
) -> Checkpoint | None:
    """Load the newest checkpoint of a training, or None if there is none.

    Args:
        key: key of the training.
        limit: maximum progress. None = no limit.
        required: names of notes that it must contain.

    Raises:
        DataError: if it is damaged, with the command to start again.
    """
    for place in _finished(folder):
        try:
            state = json.loads((place / STATE).read_text())
            if state["key"] != key:
                continue
            progress = parse_count(state["done"])
            if place.name != _name(progress):
                raise ValueError(f"{STATE} is of {_name(progress)}")
            if limit is not None and progress > limit:
                continue
            notes = state["notes"]
            if not isinstance(notes, dict) or (missing := [name for name in required if name not in notes]):
                raise ValueError(f"{STATE}: notes contain no {missing[0] if isinstance(notes, dict) else 'mapping'}")
            return Checkpoint(key, progress, load_file(place / TENSORS), notes)
        except (OSError, KeyError, TypeError, ValueError, RecursionError, SafetensorError) as error:
            raise damaged_checkpoint(place, error) from None
    return None


def damaged_checkpoint(place: Path, error: Exception) -> DataError:
    """The error for a checkpoint with invalid content."""
    return DataError(f"{place}: checkpoint is damaged ({error!r}); remove it to start again")


def parse_count(value: object) -> int:
    """Parse a number of epochs or steps of a state file.

    Raises:
        ValueError: if it is not a count.
    """
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def pack(groups: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """``{"ema": {"a": t}}`` -> ``{"ema/a": t}``, tensors of any shape."""
    return {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}


def unpack(tensors: Mapping[str, torch.Tensor], group: str) -> dict[str, torch.Tensor]:
    """One group of :func:`pack`, tensors of any shape."""
    prefix = f"{group}/"
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def validate_saving(save: Callable[[Path], None]) -> None:
    """Save into a temporary folder, so problems appear before the first epoch instead of after the last one.

    Args:
        save: writes to a folder that does not exist yet. Raises if it cannot save, or would omit a tensor.
    """
    with tempfile.TemporaryDirectory(prefix="paco-adapter-") as place:
        save(Path(place) / "adapter")
