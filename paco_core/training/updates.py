"""Updates: gradients of micro-batches summed over passes and processes, clipped, and one step of the optimizer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from paco_core.training.optimizers import NotFinite
from paco_core.training.processes import Processes


class Updates:
    """Steps of the trained parameters. An update is: begin, a backward per pass, finish, step.

    Gradients are summed in fp64, so the sum does not depend on the order of the passes or on the process of each.
    """

    def __init__(
        self,
        parameters: dict[str, torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
        max_grad_norm: float,
        processes: Processes,
    ) -> None:
        self.parameters, self.optimizer = parameters, optimizer
        self.max_grad_norm, self.processes = max_grad_norm, processes
        self.single_pass = False
        self.totals: dict[str, torch.Tensor] = {}

    def begin(self, *, single_pass: bool) -> None:
        """Begin an update; ``single_pass``: it has one pass in all processes, whose gradient is the sum."""
        self.optimizer.zero_grad(set_to_none=True)
        self.single_pass = single_pass
        self.totals = {}

    def backward(self, loss: torch.Tensor, *, counts: bool = True) -> None:
        """Add the gradients of a pass from its scalar loss; a pass that does not count is a dummy for FSDP."""
        loss.backward()
        if self.single_pass:
            return
        for name, parameter in self.parameters.items():
            if counts and parameter.grad is not None:
                if name in self.totals:
                    self.totals[name] += parameter.grad
                else:
                    self.totals[name] = parameter.grad.double()
            parameter.grad = None

    def finish(self) -> None:
        """Sum the gradients of all passes and processes."""
        if self.single_pass:
            return
        totals = self.totals
        if self.processes.world_size > 1:  # each process must sum the same parameters
            absent = {name: p for name, p in self.parameters.items() if name not in totals}
            totals |= {name: torch.zeros_like(p, dtype=torch.float64) for name, p in absent.items()}
        changed = [(parameter, totals[name]) for name, parameter in self.parameters.items() if name in totals]
        sums = self.processes.all_reduce_many([total for _, total in changed])
        for (parameter, _), total in zip(changed, sums, strict=True):
            parameter.grad = total.to(parameter.dtype)

    def step(self) -> float:
        """Clip and step; return the norm of the gradient before clipping.

        Raises:
            NotFinite: when the norm is not finite; no weight has been changed.
        """
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.max_grad_norm))
        if not np.isfinite(norm):
            raise NotFinite(norm)
        self.optimizer.step()
        return norm

    def moments(self) -> dict[str, torch.Tensor]:
        """State of the optimizer by ``parameter|key``, shaped like the parameters; see :func:`moments_of`."""
        return moments_of(self.optimizer, self.parameters)

    def restore(self, moments: dict[str, torch.Tensor]) -> None:
        """Load the tensors of :meth:`moments`, shaped like them, after the weights were restored."""
        restore_moments(self.optimizer, self.parameters, moments)


def moments_of(optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """State of an optimizer for each parameter, by ``parameter|key``. Empty before its first step.

    Moments are shaped like their parameter, counts of steps are scalars.
    """
    # bitsandbytes counts steps in an int and shares quantization maps, but a safetensors file needs separate tensors.
    return {
        f"{name}|{key}": value.clone() if key.startswith("qmap") else torch.as_tensor(value)
        for name, parameter in parameters.items()
        for key, value in optimizer.state[parameter].items()
    }


def restore_moments(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor], moments: Mapping[str, torch.Tensor]
) -> None:
    """Restore the moments of :func:`moments_of`, shaped like them, after the weights were restored.

    Raises:
        KeyError: if a parameter does not exist.
    """
    of_torch = isinstance(optimizer, torch.optim.AdamW)
    for label, value in moments.items():
        name, _, key = label.rpartition("|")
        parameter = parameters[name]
        state = optimizer.state[parameter]
        if key == "step":
            state[key] = value.cpu() if of_torch else int(value)
        else:
            state[key] = value.to(parameter.device)
