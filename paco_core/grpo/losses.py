"""Policy losses. Each loss declares the tensors of the rollout that it needs; other tensors are not computed.

A loss on noisy transitions (:data:`LOSSES`) is one function of :class:`LossInputs` and one line. The loss on
the forward process, :func:`nft`, needs clean latents only. The losses of :data:`OFFLINE` learn from ranked images and
need no rollout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from paco_core.grpo.dynamics import Step, Transition
from paco_core.grpo.rollout import TRANSITION


@dataclass(frozen=True)
class LossInputs:
    """One training step of N samples: new and old log-probabilities (N,), advantages (N,).

    ``error_weight``: factor of the squared error in the log-probability of the dynamics at this step.
    """

    log_prob: torch.Tensor
    old_log_prob: torch.Tensor
    advantages: torch.Tensor
    clip_range: float
    step: Step
    transition: Transition
    error_weight: float
    old_mean: torch.Tensor | None = None  # mean of the rollout's transition, if the loss needs it


@dataclass(frozen=True)
class LossTerms:
    """Loss per sample (N,) and the ratio before clipping (N,)."""

    loss: torch.Tensor
    ratio: torch.Tensor


@dataclass(frozen=True)
class Loss:
    """``keeps``: tensors of :class:`paco_core.grpo.rollout.NoisyStep` that the function reads."""

    function: Callable[[LossInputs], LossTerms]
    keeps: frozenset[str] = TRANSITION


def _clipped(ratio: torch.Tensor, advantages: torch.Tensor, clip_range: float) -> torch.Tensor:
    return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1.0 - clip_range, 1.0 + clip_range))


def ppo(inputs: LossInputs) -> LossTerms:
    """max(-A rho, -A clip(rho)), rho = exp(log p - log p_old) (Flow-GRPO, arXiv 2505.05470)."""
    ratio = (inputs.log_prob - inputs.old_log_prob).exp()
    return LossTerms(_clipped(ratio, inputs.advantages, inputs.clip_range), ratio)


def grpo_guard(inputs: LossInputs) -> LossTerms:
    """Ratio without its drift and step scale, per sample (GRPO-Guard, arXiv 2510.22319).

    rho = exp((log p - log p_old + mean((mu - mu_old)^2) / (2 s^2)) s), loss divided by -d. Here log p is the
    Gaussian's, for every dynamics. For example, the log-probability of CPS has no factor 1 / (2 s^2).

    Raises:
        ValueError: if the rollout kept no mean.
    """
    if inputs.old_mean is None:
        raise ValueError("grpo_guard needs the rollout's means; the rollout kept none")
    std = inputs.transition.std
    drift = ((inputs.transition.mean - inputs.old_mean) ** 2).flatten(1).mean(dim=1)
    moved = (inputs.log_prob - inputs.old_log_prob) / inputs.error_weight  # of the squared error
    ratio = ((moved + drift) / (2.0 * std)).exp()
    return LossTerms(_clipped(ratio, inputs.advantages, inputs.clip_range) / -inputs.step.d, ratio)


LOSSES = {
    "ppo": Loss(ppo),
    "grpo_guard": Loss(grpo_guard, keeps=TRANSITION | {"mean"}),
}

FORWARD_LOSS = "nft"


@dataclass(frozen=True)
class NftInputs:
    """N clean latents noised to ``sigma``: ``noised`` and both velocities shaped like ``clean``, advantages (N,)."""

    clean: torch.Tensor
    noised: torch.Tensor
    velocity: torch.Tensor
    old_velocity: torch.Tensor
    sigma: float
    advantages: torch.Tensor
    max_advantage: float
    mix: float


def nft(inputs: NftInputs) -> torch.Tensor:
    """Pull the implicit positive policy towards good samples, the negative one towards bad ones: (N,).

    DiffusionNFT, arXiv 2509.16117: r = clip(A / (2 A_max) + 1/2, 0, 1), v+ = b v + (1 - b) v_old,
    v- = (1 + b) v_old - b v, x0+- = x_t - t v+-, l+- = mean((x0+- - x0)^2) / stopgrad(mean|x0+- - x0|),
    loss = A_max (r l+ + (1 - r) l-) / b.
    """
    b, limit = inputs.mix, inputs.max_advantage
    share = (inputs.advantages / (2.0 * limit) + 0.5).clamp(0.0, 1.0)
    positive = b * inputs.velocity + (1.0 - b) * inputs.old_velocity
    negative = (1.0 + b) * inputs.old_velocity - b * inputs.velocity

    def distance(velocity: torch.Tensor) -> torch.Tensor:
        residual = (inputs.noised - inputs.sigma * velocity - inputs.clean).flatten(1)
        scale = residual.detach().double().abs().mean(dim=1).clamp_min(1e-5).to(residual.dtype)
        return (residual**2).mean(dim=1) / scale

    return limit * (share * distance(positive) + (1.0 - share) * distance(negative)) / b


@dataclass(frozen=True)
class PairErrors:
    """Mean squared errors of velocities on N pairs of images, (N,) each. Both images of a pair have the same noise.

    ``worst`` and the errors of the frozen reference are None if the loss does not need them.
    """

    best: torch.Tensor
    worst: torch.Tensor | None = None
    reference_best: torch.Tensor | None = None
    reference_worst: torch.Tensor | None = None

    @property
    def margin(self) -> torch.Tensor:
        """Improvement over the reference for the best image minus that for the worst image: (N,)."""
        assert self.worst is not None and self.reference_best is not None and self.reference_worst is not None
        return (self.worst - self.reference_worst) - (self.best - self.reference_best)


def dpo(errors: PairErrors, beta: float) -> torch.Tensor:
    """Prefer the best image of a prompt to the worst, regularized by a frozen reference: (N,).

    Diffusion-DPO, arXiv 2311.12908, equation 14, with the error of the velocity instead of the noise, as in Flow-DPO,
    arXiv 2501.13918: loss = -log sigmoid(-beta/2 [(|v_w - v(x_w)|^2 - |v_w - v_ref(x_w)|^2) - (|v_l - v(x_l)|^2 -
    |v_l - v_ref(x_l)|^2)]), x = (1 - sigma) x0 + sigma noise, v = noise - x0, one noise per pair. |.|^2 is the mean
    over elements, as in Diffusion-DPO's code, and beta does not depend on sigma.
    """
    return -torch.nn.functional.logsigmoid(0.5 * beta * errors.margin)


def sft(errors: PairErrors, beta: float) -> torch.Tensor:  # noqa: ARG001
    """The flow-matching error of the best image (arXiv 2210.02747), the baseline of :func:`dpo`: (N,)."""
    return errors.best


@dataclass(frozen=True)
class OfflineLoss:
    """A loss on ranked images. ``pairs``: whether it needs the worst images and the frozen reference."""

    function: Callable[[PairErrors, float], torch.Tensor]
    pairs: bool


OFFLINE = {
    "dpo": OfflineLoss(dpo, pairs=True),
    "sft": OfflineLoss(sft, pairs=False),
}


@dataclass(frozen=True)
class OldDecay:
    """Decay of the adapter `old` at its n-th update: 0 until ``flat``, then rising to ``hold``."""

    flat: int
    rate: float
    hold: float

    def at(self, update: int) -> float:
        return 0.0 if update < self.flat else min((update - self.flat) * self.rate, self.hold)


#: Schedules of DiffusionNFT's code: it samples on policy (`old` = the trained adapter), or from a slow follower.
OLD_DECAYS: dict[Literal["on_policy", "slow", "late"], OldDecay] = {
    "on_policy": OldDecay(0, 0.0, 0.0),
    "slow": OldDecay(0, 0.001, 0.5),
    "late": OldDecay(75, 0.0075, 0.999),
}


def gaussian_kl(
    mean: torch.Tensor, reference: torch.Tensor, transition: Transition, step: Step, form: Literal["exact", "paper"]
) -> torch.Tensor:
    """KL of two Gaussian transitions of equal width, mean over elements: (N,).

    ``exact``: (mu - mu_ref)^2 / (2 s^2), s the full standard deviation; ``paper`` (PaCo-GRPO, arXiv 2512.04784)
    divides by the noise rate s_t = s / sqrt(-d) instead.
    """
    variance = transition.std**2 / (-step.d if form == "paper" else 1.0)
    return ((mean - reference) ** 2).flatten(1).mean(dim=1) / (2.0 * variance)
