"""What turns losses into steps of an adapter: the optimiser whole on each process, or shared out by DeepSpeed."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from paco_core.training.moments import moments_of, restore_moments
from paco_core.training.optimizers import NotFinite
from paco_core.training.processes import Processes
from paco_core.training.zero import SharedUpdates


class Updates(Protocol):
    """What a training asks of its optimiser. An update is: begin, a backward a pass, finish, step."""

    @property
    def module(self) -> torch.nn.Module | None:
        """What a pass must call: the module that was given, or an engine around it."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimiser, whose groups hold the learning rate."""

    def begin(self, passes: int, *, alone: bool) -> None:
        """An update of so many passes on this process; ``alone``: it is the update's only one, anywhere."""

    def backward(self, loss: torch.Tensor, *, counts: bool = True) -> None:
        """Add the gradients of a pass from its scalar loss; one that does not count joins in others' needs."""

    def finish(self) -> None:
        """Bring together the gradients of all passes and processes."""

    def step(self) -> float:
        """Clip and step; the norm of the gradient before clipping.

        Raises:
            NotFinite: when the norm is not finite; no weight has been changed.
        """

    def moments(self) -> dict[str, torch.Tensor]:
        """State of the optimiser by ``parameter|key``, shaped like :func:`moments_of`'s for any number of processes."""

    def restore(self, moments: dict[str, torch.Tensor]) -> None:
        """Put back what :meth:`moments` gave, shaped like that, after the weights were put back."""


def build(
    module: torch.nn.Module | None,
    parameters: dict[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    max_grad_norm: float,
    processes: Processes,
) -> Updates:
    """The updates of ``parameters``, as the launch configuration asks for them.

    Args:
        module: what a pass calls and what holds the parameters; where there is none, ZeRO-2 has nothing to shard.
    """
    if processes.zero:
        return SharedUpdates(module, parameters, optimizer, max_grad_norm, processes.world)
    return WholeUpdates(module, parameters, optimizer, max_grad_norm, processes)


class WholeUpdates:
    """Gradients are summed in fp64: then the sum does not depend on who computed which, and in what order."""

    def __init__(
        self,
        module: torch.nn.Module | None,
        parameters: dict[str, torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
        max_grad_norm: float,
        processes: Processes,
    ) -> None:
        self.module, self.parameters, self.optimizer = module, parameters, optimizer
        self.max_grad_norm, self.processes = max_grad_norm, processes
        self.alone = False
        self.totals: dict[str, torch.Tensor] = {}

    def begin(self, passes: int, *, alone: bool) -> None:  # noqa: ARG002
        self.optimizer.zero_grad(set_to_none=True)
        self.alone = alone  # one micro-batch in one process: its gradient is the sum
        self.totals = {}

    def backward(self, loss: torch.Tensor, *, counts: bool = True) -> None:
        loss.backward()
        if self.alone:
            return
        for name, parameter in self.parameters.items():
            if counts and parameter.grad is not None:
                if name in self.totals:
                    self.totals[name] += parameter.grad
                else:
                    self.totals[name] = parameter.grad.double()
            parameter.grad = None

    def finish(self) -> None:
        if self.alone:
            return
        totals = self.totals
        if self.processes.world > 1:  # another process may have what this one has not
            absent = {name: p for name, p in self.parameters.items() if name not in totals}
            totals |= {name: torch.zeros_like(p, dtype=torch.float64) for name, p in absent.items()}
        changed = [(parameter, totals[name]) for name, parameter in self.parameters.items() if name in totals]
        sums = self.processes.sum_each([total for _, total in changed])
        for (parameter, _), total in zip(changed, sums, strict=True):
            parameter.grad = total.to(parameter.dtype)

    def step(self) -> float:
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.max_grad_norm))
        if not np.isfinite(norm):
            raise NotFinite(norm)
        self.optimizer.step()
        return norm

    def moments(self) -> dict[str, torch.Tensor]:
        return moments_of(self.optimizer, self.parameters)

    def restore(self, moments: dict[str, torch.Tensor]) -> None:
        restore_moments(self.optimizer, self.parameters, moments)
