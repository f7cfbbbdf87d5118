"""Policy losses. Each declares what the rollout must keep for it; what no loss needs is not kept.

A loss is one function of :class:`LossInputs` and one line in :data:`LOSSES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paco_core.grpo.dynamics import Step, Transition

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LossInputs:
    """One trained step of N samples: new and old log-probabilities (N,), advantages (N,)."""

    log_prob: torch.Tensor
    old_log_prob: torch.Tensor
    advantages: torch.Tensor
    clip_range: float
    step: Step
    transition: Transition
    old_mean: torch.Tensor | None = None  # mean of the rollout's transition, where a loss needs it


@dataclass(frozen=True)
class LossTerms:
    """Loss a sample (N,) and the ratio that was clipped (N,)."""

    loss: torch.Tensor
    ratio: torch.Tensor


@dataclass(frozen=True)
class Loss:
    function: Callable[[LossInputs], LossTerms]
    keeps_mean: bool = False


def _clipped(ratio: torch.Tensor, advantages: torch.Tensor, clip_range: float) -> torch.Tensor:
    import torch

    return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1.0 - clip_range, 1.0 + clip_range))


def ppo(inputs: LossInputs) -> LossTerms:
    """max(-A rho, -A clip(rho)), rho = exp(log p - log p_old) (Flow-GRPO, arXiv 2505.05470)."""
    ratio = (inputs.log_prob - inputs.old_log_prob).exp()
    return LossTerms(_clipped(ratio, inputs.advantages, inputs.clip_range), ratio)


def grpo_guard(inputs: LossInputs) -> LossTerms:
    """Ratio freed of its drift and step scale, sample by sample (GRPO-Guard, arXiv 2510.22319).

    rho = exp((log p - log p_old + mean((mu - mu_old)^2) / (2 s^2)) s), loss divided by -d.

    Raises:
        ValueError: when the rollout kept no mean.
    """
    if inputs.old_mean is None:
        raise ValueError("grpo_guard needs the rollout's means; the rollout was told to keep none")
    std = inputs.transition.std
    drift = ((inputs.transition.mean - inputs.old_mean) ** 2).flatten(1).mean(dim=1) / (2.0 * std**2)
    ratio = ((inputs.log_prob - inputs.old_log_prob + drift) * std).exp()
    return LossTerms(_clipped(ratio, inputs.advantages, inputs.clip_range) / -inputs.step.d, ratio)


LOSSES = {
    "ppo": Loss(ppo),
    "grpo_guard": Loss(grpo_guard, keeps_mean=True),
}
