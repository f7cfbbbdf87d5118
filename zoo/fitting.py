"""One training loop for the readers of the zoo: AdamW, warm-up and cosine, checkpoints that resume exactly.

A step's batch is drawn from a generator seeded by its number, so a run that was interrupted sees the
same batches as one that was not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from paco_core.io.atomic import atomic
from paco_core.io.progress import Progress

CHECKPOINT = "checkpoint.safetensors"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Schedule:
    """How long and how hard to train."""

    steps: int
    learning_rate: float
    warmup: int = 50
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    checkpoint_every: int = 200

    def rate_at(self, step: int) -> float:
        """Learning rate of a step (from 0): linear warm-up, then cosine to a hundredth of the peak."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        share = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * share)))


def fit(
    model: torch.nn.Module,
    loss_at: Callable[[int], torch.Tensor],
    schedule: Schedule,
    folder: Path,
    label: str,
    say: Say | None = print,
    after: Callable[[int], None] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """Train ``model`` in place, continuing from the checkpoint in ``folder`` where there is one.

    Args:
        loss_at: step number -> scalar loss with a graph.
        after: called at every checkpoint with the number of steps done (to export, to measure), and once where the
            training was complete already: who was killed in it goes on with it.
        optimizer: AdamW when none is given; its rate follows the schedule in any case.
    """
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = optimizer or torch.optim.AdamW(
        weights, lr=schedule.learning_rate, betas=(0.9, 0.98), weight_decay=schedule.weight_decay
    )
    start = _restore(model, optimizer, folder)
    if start == schedule.steps and after is not None:
        after(start)
    running = math.nan
    label = f"{label} from step {start}" if start else label
    with Progress(schedule.steps - start, label, "steps", say) as progress:
        for step in range(start, schedule.steps):
            for group in optimizer.param_groups:
                group["lr"] = schedule.rate_at(step)
            loss = loss_at(step)
            if not torch.isfinite(loss):
                raise ArithmeticError(f"{label}: loss is {loss.item()} at step {step}; lower the learning rate")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(weights, schedule.max_grad_norm)
            optimizer.step()
            running = loss.item() if math.isnan(running) else 0.97 * running + 0.03 * loss.item()
            progress.advance(note=f"loss {running:.4f}")
            if (step + 1) % schedule.checkpoint_every == 0 or step + 1 == schedule.steps:
                _save(model, optimizer, folder, step + 1)
                if after is not None:
                    after(step + 1)


def _save(model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: Path, steps: int) -> None:
    tensors = {f"model.{name}": value.detach().contiguous().clone() for name, value in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value.contiguous() for name, value in state.items()}
    with atomic(folder / CHECKPOINT) as part:
        save_file(tensors, part, {"steps": str(steps)})  # in one file: a kill between two would repeat steps


def _restore(model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> int:
    """Load a checkpoint if there is one; returns the number of steps that are already done."""
    if not (folder / CHECKPOINT).is_file():
        return 0
    with safe_open(folder / CHECKPOINT, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        steps = int(file.metadata()["steps"])
    model.load_state_dict({name[6:]: value for name, value in tensors.items() if name.startswith("model.")})
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, moment = name.split(".")
            state.setdefault(int(index), {})[moment] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return steps
