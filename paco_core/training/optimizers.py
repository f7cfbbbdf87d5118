"""Optimizers by name."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from paco_core.config.params import PolicyTraining
from paco_core.io.files import DataError

if TYPE_CHECKING:
    import torch


class NotFinite(RuntimeError):
    """A gradient is not finite. The weights have not been changed."""

    def __init__(self, norm: float) -> None:
        super().__init__(
            f"the gradient's norm is {norm}; the last checkpoint is good. Lower policies.defaults.learning_rate, "
            "or check that the rewards are finite"
        )


def validate_optimizer(name: str) -> None:
    """Check the requirements of an optimizer.

    Raises:
        DataError: if it is adamw_8bit and bitsandbytes is not installed.
    """
    if name == "adamw_8bit" and find_spec("bitsandbytes") is None:
        raise DataError(
            "policies.defaults.optimizer: adamw_8bit needs bitsandbytes, which is not installed; "
            "`uv pip install bitsandbytes`, or choose adamw"
        )


def build_optimizer(parameters: Iterable[torch.nn.Parameter], params: PolicyTraining) -> torch.optim.Optimizer:
    """Build AdamW, with 8-bit moments if ``params.optimizer`` is adamw_8bit.

    Raises:
        DataError: as :func:`validate_optimizer`.
    """
    import torch

    validate_optimizer(params.optimizer)
    options: dict[str, Any] = {"lr": params.learning_rate, "weight_decay": params.weight_decay}
    if params.optimizer == "adamw":
        return torch.optim.AdamW(list(parameters), **options)
    from bitsandbytes.optim import AdamW8bit

    eight_bit: torch.optim.Optimizer = AdamW8bit(list(parameters), **options)
    return eight_bit
