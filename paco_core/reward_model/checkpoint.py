"""Training state on disk: adapter, optimiser, log and the best evaluation, safetensors and JSON only.

A checkpoint counts from the moment that ``state.json`` names its tensors, so a process killed at any time
leaves the one before. Nothing random is stored: the order of examples is a function of seed and epoch, and
nothing else is drawn after the first step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from paco_core.io.files import DataError, atomic, read_json, write_json
from paco_core.reward_model.evaluation import Evaluation

STATE = "state.json"


@dataclass
class Best:
    """The best evaluation so far; its weights lie beside the state."""

    epoch: int
    seen: Evaluation

    @property
    def file(self) -> str:
        return f"best-epoch-{self.epoch}.safetensors"


@dataclass
class Progressed:
    """How far a run has come."""

    epoch: int = 0  # epochs done
    within: int = 0  # optimiser steps done in the epoch that has begun
    step: int = 0  # optimiser steps done in all
    log: list[dict[str, float]] = field(default_factory=list)
    best: Best | None = None


def save_best(folder: Path, best: Best, weights: Mapping[str, torch.Tensor]) -> None:
    """Write the weights of the best evaluation; the next :func:`save` makes them count."""
    _save_tensors(folder / best.file, {name: tensor.detach() for name, tensor in weights.items()})


def load_best(folder: Path, best: Best, weights: Mapping[str, torch.Tensor]) -> None:
    """Put the best weights into ``weights``."""
    tensors = load_file(folder / best.file)
    with torch.no_grad():
        for name, tensor in weights.items():
            tensor.copy_(tensors[name])


def save(folder: Path, key: str, done: Progressed, weights: Mapping[str, torch.Tensor], optimizer: Any) -> None:
    """Write the state; ``key`` names what is being trained (parameters, examples, base)."""
    tensors = {f"weight/{name}": tensor.detach() for name, tensor in weights.items()}
    for name, tensor in weights.items():
        for entry, value in optimizer.state[tensor].items():
            tensors[f"{entry}/{name}"] = value.detach()
    file = f"step-{done.step}.safetensors"
    _save_tensors(folder / file, tensors)
    state = {
        "key": key,
        "tensors": file,
        "epoch": done.epoch,
        "within": done.within,
        "step": done.step,
        "log": done.log,
        "best": None if done.best is None else {"epoch": done.best.epoch, **_plain(done.best.seen)},
    }
    write_json(folder / STATE, state)
    needed = {file, done.best.file if done.best else ""}
    for path in folder.glob("*.safetensors"):
        if path.name not in needed:
            path.unlink()


def restore(folder: Path, key: str, weights: Mapping[str, torch.Tensor], optimizer: Any) -> Progressed | None:
    """Load the state into ``weights`` and ``optimizer``; None when there is none for this ``key``.

    Raises:
        DataError: when it is damaged, saying how to start afresh.
    """
    if not (folder / STATE).is_file():
        return None
    state = read_json(folder / STATE)
    try:
        return _restored(folder, state, weights, optimizer) if state["key"] == key else None
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OSError, SafetensorError) as error:
        raise DataError(f"{folder}: checkpoint is damaged ({error!r}); remove it to start afresh") from None


def _restored(
    folder: Path, state: Mapping[str, Any], weights: Mapping[str, torch.Tensor], optimizer: Any
) -> Progressed:
    best = None if state["best"] is None else _best(state["best"])
    epoch, within, step = (_count(state[name]) for name in ("epoch", "within", "step"))
    done = Progressed(epoch, within, step, [dict(row) for row in state["log"]], best)
    entries: dict[str, dict[str, torch.Tensor]] = {name: {} for name in weights}
    for label, value in load_file(folder / state["tensors"]).items():
        entry, name = label.split("/", 1)
        entries[name][entry] = value
    with torch.no_grad():
        for name, tensor in weights.items():
            tensor.copy_(entries[name].pop("weight"))
            optimizer.state[tensor] = {k: v if k == "step" else v.to(tensor) for k, v in entries[name].items()}
    return done


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _save_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    with atomic(path) as part:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, part)


def _plain(seen: Evaluation) -> dict[str, Any]:
    """An evaluation as JSON, where NaN is null."""
    tree = asdict(seen)
    tree["scores"] = [None if math.isnan(score) else score for score in seen.scores]
    return {name: None if isinstance(v, float) and math.isnan(v) else v for name, v in tree.items()}


def _best(tree: dict[str, Any]) -> Best:
    values: dict[str, Any] = {name: math.nan if value is None else value for name, value in tree.items()}
    values["scores"] = tuple(math.nan if score is None else score for score in tree["scores"])
    return Best(int(values.pop("epoch")), Evaluation(**values))
