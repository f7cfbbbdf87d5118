"""Optimisers by name."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from paco_core.config.params import PolicyTraining
from paco_core.io.files import DataError

if TYPE_CHECKING:
    import torch


class NotFinite(RuntimeError):
    """A gradient is not finite; no weight has been changed by it."""

    def __init__(self, norm: float) -> None:
        super().__init__(
            f"the gradient's norm is {norm}; the last checkpoint is good. Lower policies.defaults.learning_rate, "
            "or check that the rewards are finite"
        )


def check_optimizer(name: str) -> None:
    """Say early what an optimiser lacks.

    Raises:
        DataError: when adamw_8bit is asked for and bitsandbytes is not installed.
    """
    if name == "adamw_8bit" and find_spec("bitsandbytes") is None:
        raise DataError(
            "policies.defaults.optimizer: adamw_8bit needs bitsandbytes, which is not installed here; "
            "`uv pip install bitsandbytes`, or choose adamw"
        )


def build(parameters: Iterable[torch.nn.Parameter], params: PolicyTraining) -> torch.optim.Optimizer:
    """AdamW, with 8-bit moments where ``params.optimizer`` asks for them.

    Raises:
        DataError: as :func:`check_optimizer`.
    """
    import torch

    check_optimizer(params.optimizer)
    given: dict[str, Any] = {"lr": params.learning_rate, "weight_decay": params.weight_decay}
    if params.optimizer == "adamw":
        return torch.optim.AdamW(list(parameters), **given)
    from bitsandbytes.optim import AdamW8bit

    eight_bit: torch.optim.Optimizer = AdamW8bit(list(parameters), **given)
    return eight_bit
