"""Exponential moving average of the adapter, updated once per optimizer step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch


class Ema:
    """Updates every ``every`` optimizer steps with decay min((1 + s) / (10 + s), ``decay``), s = optimizer steps."""

    def __init__(self, parameters: Mapping[str, torch.Tensor], decay: float, every: int) -> None:
        self.decay, self.every, self.steps = decay, every, 0
        self.shadow = {name: p.detach().clone() for name, p in parameters.items()}

    def decay_at(self, steps: int) -> float:
        return min((1 + steps) / (10 + steps), self.decay)

    def update(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Count one optimizer step and, if an update is due, average ``parameters``, shaped like the averages."""
        self.steps += 1
        if self.steps % self.every:
            return
        share = 1.0 - self.decay_at(self.steps)
        for name, value in self.shadow.items():
            value.lerp_(parameters[name].detach(), share)

    @contextmanager
    def applied(self, parameters: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Context with the averages in ``parameters``, shaped like them. Afterwards, the live weights return."""
        live = {name: p.detach().clone() for name, p in parameters.items()}
        with torch.no_grad():
            for name, value in self.shadow.items():
                parameters[name].copy_(value)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, value in live.items():
                    parameters[name].copy_(value)
