"""What turns losses into steps of the adapter: the optimiser whole on each process, or shared out by DeepSpeed."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from paco_core.config.params import PoliciesParams
from paco_core.grpo.zero import SharedUpdates
from paco_core.policies.base import Policy
from paco_core.training import optimizers
from paco_core.training.moments import moments_of, restore_moments
from paco_core.training.optimizers import NotFinite
from paco_core.training.processes import Processes


class Updates(Protocol):
    """What a learner asks of its optimiser. An update is: begin, a backward a pass, finish, step."""

    def begin(self, passes: int, *, alone: bool) -> None:
        """An update of so many passes on this process; ``alone``: it is the update's only one, anywhere."""

    def backward(self, loss: torch.Tensor, *, counts: bool = True) -> None:
        """Add the gradients of one pass; of one that does not count, only take part in what others need."""

    def finish(self) -> None:
        """Bring together the gradients of all passes and processes."""

    def step(self) -> float:
        """Clip and step; the norm of the gradient before clipping.

        Raises:
            NotFinite: when the norm is not finite; no weight has been changed.
        """

    def moments(self) -> dict[str, torch.Tensor]:
        """State of the optimiser by ``parameter|key``, whole, the same for every number of processes."""

    def restore(self, moments: dict[str, torch.Tensor]) -> None:
        """Put back what :meth:`moments` gave, after the weights were put back."""


def build(policy: Policy, params: PoliciesParams, processes: Processes) -> Updates:
    """The optimiser of the policy's trainable weights, as the launch configuration asks for it."""
    parameters = policy.trainable()
    optimizer = optimizers.build(parameters.values(), params)
    if processes.zero:
        return SharedUpdates(policy, parameters, optimizer, params, processes.world)
    return WholeUpdates(parameters, optimizer, params, processes)


class WholeUpdates:
    """Gradients are summed in fp64: then the sum does not depend on who computed which, and in what order."""

    def __init__(
        self,
        parameters: dict[str, torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
        params: PoliciesParams,
        processes: Processes,
    ) -> None:
        self.parameters, self.optimizer = parameters, optimizer
        self.params, self.processes = params, processes

    def begin(self, passes: int, *, alone: bool) -> None:  # noqa: ARG002
        self.optimizer.zero_grad(set_to_none=True)
        self.alone = alone  # one micro-batch in one process: its gradient is the sum
        self.totals: dict[str, torch.Tensor] = {}

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
        for name, parameter in self.parameters.items():
            total = self.totals.get(name)
            if total is None:
                if self.processes.world == 1:
                    continue
                total = torch.zeros_like(parameter, dtype=torch.float64)
            parameter.grad = self.processes.sum(total).to(parameter.dtype)

    def step(self) -> float:
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.params.max_grad_norm))
        if not np.isfinite(norm):
            raise NotFinite(norm)
        self.optimizer.step()
        return norm

    def moments(self) -> dict[str, torch.Tensor]:
        return moments_of(self.optimizer, self.parameters)

    def restore(self, moments: dict[str, torch.Tensor]) -> None:
        restore_moments(self.optimizer, self.parameters, moments)
