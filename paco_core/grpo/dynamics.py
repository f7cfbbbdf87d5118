"""One reverse step of rectified flow as a Gaussian policy: mean, standard deviation, log-probability.

A step goes from sigma to sigma' < sigma, d = sigma' - sigma < 0, with velocity v and noise level a:
x' = mean + std * xi. The log-probability is the *mean* over a sample's elements, so that it does not
grow with resolution. A dynamics is one function and one line in :data:`DYNAMICS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Step:
    """Start and end of a step. ``sigma_cap`` replaces sigma at the pole of 1/(1 - sigma)."""

    sigma: float
    sigma_next: float
    sigma_cap: float
    noise_level: float

    @property
    def d(self) -> float:
        return self.sigma_next - self.sigma


@dataclass(frozen=True)
class Transition:
    """A Gaussian over the next latents: ``mean`` shaped like them, ``std`` the full standard deviation."""

    mean: torch.Tensor
    std: float


@dataclass(frozen=True)
class Dynamics:
    """The transition of a noisy step and its log-probability (``log_prob``, (N,)).

    ``error_weight``: factor of the squared error in ``log_prob``, by standard deviation.
    """

    transition: Callable[[torch.Tensor, torch.Tensor, Step], Transition]
    log_prob: Callable[[torch.Tensor, Transition], torch.Tensor]
    error_weight: Callable[[float], float]


def _element_mean(value: torch.Tensor) -> torch.Tensor:
    return value.flatten(1).mean(dim=1)


def gaussian_log_prob(x_next: torch.Tensor, transition: Transition) -> torch.Tensor:
    """Log density of N(mean, std^2) at ``x_next``, averaged over a sample's elements: (N,)."""
    residual = (x_next - transition.mean) / transition.std
    return _element_mean(-0.5 * residual**2) - math.log(transition.std) - 0.5 * math.log(2 * math.pi)


def gaussian_error_weight(std: float) -> float:
    """1 / (2 std^2)."""
    return 1.0 / (2.0 * std**2)


def squared_error_log_prob(x_next: torch.Tensor, transition: Transition) -> torch.Tensor:
    """-mean((x' - mean)^2), as CPS defines it (arXiv 2509.05952): (N,)."""
    return _element_mean(-((x_next - transition.mean) ** 2))


def unit_error_weight(_std: float) -> float:
    """1, because the log-probability of CPS has no standard deviation."""
    return 1.0


def flow_sde(x: torch.Tensor, v: torch.Tensor, step: Step) -> Transition:
    """Flow-GRPO (arXiv 2505.05470): the SDE with the marginals of the flow, s_t = a sqrt(sigma / (1 - sigma)).

    Latents ``x``, velocity ``v`` and the mean of the transition are (N, tokens, channels).
    """
    sigma, d = step.sigma, step.d
    capped = step.sigma_cap if sigma >= 1.0 else sigma
    s_t = step.noise_level * math.sqrt(sigma / (1.0 - capped))
    drift = s_t**2 / (2.0 * sigma)
    mean = x * (1.0 + drift * d) + v * ((1.0 + drift * (1.0 - sigma)) * d)
    return Transition(mean, s_t * math.sqrt(-d))


def cps(x: torch.Tensor, v: torch.Tensor, step: Step) -> Transition:
    """Coefficients-preserving sampling (arXiv 2509.05952): noise replaces noise, the level stays sigma'.

    Shapes are those of :func:`flow_sde`: (N, tokens, channels).
    """
    std = step.sigma_next * math.sin(step.noise_level * math.pi / 2.0)
    clean = x - step.sigma * v
    noise = x + (1.0 - step.sigma) * v
    noise_share = math.sqrt(max(step.sigma_next**2 - std**2, 0.0))
    return Transition((1.0 - step.sigma_next) * clean + noise_share * noise, std)


def dance_sde(x: torch.Tensor, v: torch.Tensor, step: Step) -> Transition:
    """DanceGRPO (arXiv 2505.07818): constant noise rate a, drift corrected by the score.

    Shapes are those of :func:`flow_sde`: (N, tokens, channels).
    """
    sigma = step.sigma
    clean = x - sigma * v
    correction = (x - (1.0 - sigma) * clean) * (step.noise_level**2 / (2.0 * sigma**2))
    return Transition(x + (v + correction) * step.d, step.noise_level * math.sqrt(-step.d))


DYNAMICS = {
    "flow_sde": Dynamics(flow_sde, gaussian_log_prob, gaussian_error_weight),
    "cps": Dynamics(cps, squared_error_log_prob, unit_error_weight),
    "dance_sde": Dynamics(dance_sde, gaussian_log_prob, gaussian_error_weight),
}


def euler(x: torch.Tensor, v: torch.Tensor, step: Step) -> torch.Tensor:
    """The deterministic step of every dynamics outside its noise steps: (N, tokens, channels) each."""
    return x + v * step.d


def steps_of(sigmas: torch.Tensor, noise_level: float) -> list[Step]:
    """The steps of a schedule (steps + 1,) that runs from 1 to 0."""
    values = [float(sigma) for sigma in sigmas]
    return [Step(a, b, values[1], noise_level) for a, b in pairwise(values)]
