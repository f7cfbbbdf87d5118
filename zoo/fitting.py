"""Fitting: a resumable training loop with Muon for hidden matrices, and saving of the result as a pipeline.

The batch of a step comes from a generator with the step number as seed, so an interrupted run sees the same batches as
an uninterrupted one.

Muon orthogonalizes the momentum of matrices and convolutions before it applies it. In the short trainings of the zoo,
it needs a tenth of AdamW's steps. Vectors, embeddings and the first and last layers use AdamW. Source: K. Jordan et
al., "Muon: an optimizer for hidden layers" (2024).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from paco_core.io.atomic import atomic
from paco_core.io.files import read_json, write_json
from paco_core.io.progress import Progress
from paco_core.models.pipeline_index import MODULAR

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
MOMENTUM = 0.95
BETAS = (0.9, 0.98)


def orthogonalised(matrix: torch.Tensor, rounds: int = 5) -> torch.Tensor:
    """Nearly the orthogonal factor of a (rows, columns) matrix, by a quintic Newton-Schulz iteration."""
    a, b, c = NEWTON_SCHULZ
    x = matrix / (matrix.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(rounds):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Muon for the weights that ``is_hidden`` selects, AdamW at ``vector_share`` of the learning rate for the rest.

    Args:
        is_hidden: (name, weight) -> whether the weight is a matrix or convolution of a hidden layer.
        lr: Muon's learning rate, about ten times that of AdamW.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        lr: float,
        is_hidden: Callable[[str, torch.Tensor], bool],
        vector_share: float = 0.15,
        weight_decay: float = 0.01,
    ) -> None:
        parameters = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
        hidden = [weight for name, weight in parameters if is_hidden(name, weight)]
        chosen = {id(weight) for weight in hidden}
        vectors = [weight for _, weight in parameters if id(weight) not in chosen]
        groups = [
            {"params": hidden, "hidden": True, "share": 1.0},
            {"params": vectors, "hidden": False, "share": vector_share},
        ]
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all weights that have a gradient.

        Raises:
            ValueError: if a closure is passed, because the gradients are already computed.
        """
        if closure is not None:
            raise ValueError("Muon takes one step from the gradients at hand and calls no closure")
        for group in self.param_groups:
            rate = group["lr"] * group["share"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                update = _muon(weight, state) if group["hidden"] else _adam(weight, state)
                weight.mul_(1 - rate * group["weight_decay"]).add_(update, alpha=-rate)
        return None


def _muon(weight: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
    momentum = state.setdefault("momentum", torch.zeros_like(weight))
    momentum.mul_(MOMENTUM).add_(weight.grad)  # type: ignore[arg-type]
    ahead = (weight.grad + MOMENTUM * momentum).flatten(1)  # type: ignore[operator]
    rows, columns = ahead.shape
    return orthogonalised(ahead).view_as(weight) * max(1.0, rows / columns) ** 0.5


def _adam(weight: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
    if not state:
        state |= {"step": torch.zeros(()), "mean": torch.zeros_like(weight), "square": torch.zeros_like(weight)}
    gradient = weight.grad
    assert gradient is not None
    state["step"] += 1
    state["mean"].lerp_(gradient, 1 - BETAS[0])
    state["square"].lerp_(gradient.square(), 1 - BETAS[1])
    mean = state["mean"] / (1 - BETAS[0] ** state["step"].item())
    square = state["square"] / (1 - BETAS[1] ** state["step"].item())
    return mean / (square.sqrt() + 1e-8)


CHECKPOINT = "checkpoint.safetensors"
Log = Callable[[str], None]


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
    log: Log | None = print,
    after: Callable[[int], None] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """Train ``model`` in place. If ``folder`` has a checkpoint, the training continues from it.

    Args:
        loss_at: step number -> scalar loss with a graph.
        after: called at every checkpoint with the number of finished steps (to export or measure), and once if the
            training was already complete, because a process may have been killed in this call.
        optimizer: None uses AdamW. The learning rate follows the schedule in each case.
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
    with Progress(schedule.steps - start, label, "steps", log) as progress:
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
    """Load a checkpoint if there is one; returns the number of finished steps."""
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


def fit_pipeline(
    parts: torch.nn.Module,
    loss_at: Callable[[int], torch.Tensor],
    schedule: Schedule,
    work: Path,
    out: Path,
    log: Log,
    *,
    hidden: Callable[[str, torch.Tensor], bool],
    pipeline: Callable[[], DiffusionPipeline],
) -> None:
    """Train ``parts`` (or continue their training) with checkpoints in ``work``, and save their pipeline to ``out``.

    The weights are stored in float16. diffusers loads them as float32 by default.

    Args:
        loss_at: step number -> scalar loss with a graph.
        hidden: selects the weights of Muon by name and value; AdamW trains the rest.
        pipeline: builds the pipeline from the parts.
    """

    def export(_steps: int) -> None:
        parts.eval()
        with atomic(out, replace=True) as folder:
            pipeline().save_pretrained(str(folder))  # modular pipelines accept no Path
            if (index := folder / MODULAR).is_file():
                _name_folder(index, f"data/zoo/{out.name}")
            for weights in folder.glob("*/*.safetensors"):
                halve(weights)
            for file in folder.rglob("config.json"):
                _forget_origin(file)
        parts.train()

    optimizer = Muon(parts, schedule.learning_rate, hidden)
    fit(parts, loss_at, schedule, work, out.name, log, after=export, optimizer=optimizer)


def _forget_origin(file: Path) -> None:
    """Drop the path from which diffusers loaded a part: it means nothing on another machine."""
    config = read_json(file)
    if config.pop("_name_or_path", None) is not None:
        write_json(file, config)


def _name_folder(index: Path, folder: str) -> None:
    """Write the folder of a modular pipeline, relative to the project, to the entry of each part in its index."""
    parts = read_json(index)
    for part in parts.values():
        if isinstance(part, list):
            part[-1]["pretrained_model_name_or_path"] = folder
    write_json(index, parts)


def halve(file: Path) -> None:
    """Store the weights of a safetensors file in float16."""
    tensors = {name: tensor.half() for name, tensor in load_file(file).items()}
    with atomic(file) as part:
        save_file(tensors, part, metadata={"format": "pt"})
