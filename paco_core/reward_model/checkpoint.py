"""Training state on disk: adapter, optimiser and log, whole or absent, safetensors and JSON only.

Nothing random is stored: the order of examples is a function of seed and epoch, and nothing else is drawn
after the first step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.files import atomic, read_json, write_json

if TYPE_CHECKING:
    import torch

STATE, TENSORS = "state.json", "state.safetensors"


@dataclass
class Progressed:
    """How far a run has come."""

    epoch: int = 0  # epochs done
    step: int = 0  # optimiser steps done
    log: list[dict[str, float]] = field(default_factory=list)


def save(folder: Path, key: str, done: Progressed, weights: dict[str, torch.Tensor], optimizer: Any) -> None:
    """Write the state; ``key`` names what is being trained (parameters, examples, base)."""
    from safetensors.torch import save_file

    tensors = {f"weight/{name}": tensor.detach().contiguous() for name, tensor in weights.items()}
    for name, tensor in weights.items():
        for entry, value in optimizer.state[tensor].items():
            tensors[f"{entry}/{name}"] = value.detach().contiguous()
    with atomic(folder) as part:
        part.mkdir()
        save_file(tensors, part / TENSORS)
        write_json(part / STATE, {"key": key, "epoch": done.epoch, "step": done.step, "log": done.log})


def restore(folder: Path, key: str, weights: dict[str, torch.Tensor], optimizer: Any) -> Progressed | None:
    """Load the state into ``weights`` and ``optimizer``; None when there is none for this ``key``."""
    import torch
    from safetensors.torch import load_file

    if not (folder / STATE).is_file():
        return None
    state = read_json(folder / STATE)
    if state["key"] != key:
        return None
    tensors = load_file(folder / TENSORS)
    with torch.no_grad():
        for name, tensor in weights.items():
            tensor.copy_(tensors[f"weight/{name}"])
            entries = {k.split("/", 1)[0]: v for k, v in tensors.items() if k.split("/", 1)[1] == name}
            entries.pop("weight")
            optimizer.state[tensor] = {k: v if k == "step" else v.to(tensor) for k, v in entries.items()}
    return Progressed(int(state["epoch"]), int(state["step"]), list(state["log"]))
