"""Sampling with a few noisy steps: pictures, and of the trajectory only what the loss will need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from paco_core.grpo.dynamics import DYNAMICS, Step, euler, steps_of
from paco_core.policies.base import NoiseKey, Policy, Size
from paco_core.policies.encoded import Encoded

#: What a trained pass of a policy-gradient loss starts from; a loss that needs more, or less, says so.
TRANSITION = frozenset({"before", "after", "log_prob"})


@dataclass(frozen=True)
class Sampling:
    """How to sample: picture size, schedule, guidance, at which steps noise is injected, and what is kept of them."""

    size: Size
    steps: Sequence[Step]
    guidance: float
    noise_steps: tuple[int, ...] = ()
    dynamics: str = "flow_sde"
    shared_noise: bool = False  # one initial noise a group
    keeps: frozenset[str] = TRANSITION  # tensors of :class:`Kept`
    train_steps: tuple[int, ...] = ()  # noise steps of which something is kept; none named = all

    @classmethod
    def of(
        cls,
        policy: Policy,
        size: Size,
        steps: int,
        guidance: float,
        *,
        noise_steps: Sequence[int] = (),
        noise_level: float = 0.0,
        dynamics: str = "flow_sde",
        shared_noise: bool = False,
        keeps: frozenset[str] = TRANSITION,
        train_steps: Sequence[int] = (),
    ) -> Sampling:
        """Take the policy's schedule for ``size``.

        Raises:
            ValueError: when a noise step lies outside the schedule or is its last one (sigma 0 has no noise).
        """
        outside = [s for s in noise_steps if not 0 <= s < steps - 1]
        if outside:
            raise ValueError(f"noise steps {outside} are not among 0..{steps - 2} of {steps} sampling steps")
        schedule = steps_of(policy.sigmas(size, steps), noise_level)
        return cls(size, schedule, guidance, tuple(noise_steps), dynamics, shared_noise, keeps, tuple(train_steps))

    def with_noise_at(self, noise_steps: Sequence[int]) -> Sampling:
        """The same with noise at other steps."""
        return replace(self, noise_steps=tuple(noise_steps))

    def is_trained(self, step: int) -> bool:
        """Whether anything is kept of a noise step."""
        return bool(self.keeps) and (not self.train_steps or step in self.train_steps)


@dataclass(frozen=True)
class Kept:
    """One noisy step of N samples: latents before and after (N, L, C), and, where asked for, log p and mean."""

    step: int
    before: torch.Tensor
    after: torch.Tensor
    log_prob: torch.Tensor | None = None
    mean: torch.Tensor | None = None

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Kept:
        """The same with every tensor changed."""
        log_prob = None if self.log_prob is None else change(self.log_prob)
        mean = None if self.mean is None else change(self.mean)
        return Kept(self.step, change(self.before), change(self.after), log_prob, mean)

    def take(self, rows: Sequence[int]) -> Kept:
        index = list(rows)
        return self.map(lambda tensor: tensor[index])


@dataclass(frozen=True)
class Trajectory:
    """Clean latents (N, L, C) and the kept steps."""

    latents: torch.Tensor
    kept: list[Kept]


def _prefix(
    policy: Policy, encoded: Encoded, rows: Sequence[int], keys: Sequence[NoiseKey], sampling: Sampling
) -> tuple[torch.Tensor, int]:
    """Latents where samples part ways, and the step at which they do.

    With shared initial noise, samples of one prompt are equal up to the first noisy step: those steps
    are run once a prompt.
    """
    if not (sampling.shared_noise and sampling.noise_steps and min(sampling.noise_steps) > 0):
        return policy.noise(sampling.size, keys), 0
    first = min(sampling.noise_steps)
    order = list(dict.fromkeys(zip(rows, keys, strict=True)))
    x = policy.noise(sampling.size, [key for _, key in order])
    led = encoded.take([row for row, _ in order])
    for step in sampling.steps[:first]:
        x = euler(x, policy.velocity(x, step.sigma, led, sampling.guidance, sampling.size), step)
    place = {pair: position for position, pair in enumerate(order)}
    return x[[place[pair] for pair in zip(rows, keys, strict=True)]], first


def rollout(
    policy: Policy,
    encoded: Encoded,
    rows: Sequence[int],
    keys: Sequence[NoiseKey],
    sampling: Sampling,
) -> Trajectory:
    """Sample one picture a row: ODE steps, except at the noise steps.

    Args:
        encoded: the prompts.
        rows: row of ``encoded`` for each sample.
        keys: names the noise of each sample; with ``shared_noise`` the initial noise of a prompt is
            drawn for image -1, so that its whole group starts from it.
    """
    condition = encoded.take(rows)
    starts = [NoiseKey(k.prompt_id, -1, k.seed) for k in keys] if sampling.shared_noise else list(keys)
    kept: list[Kept] = []
    with torch.inference_mode():
        x, first = _prefix(policy, encoded, rows, starts, sampling)
        for number in range(first, len(sampling.steps)):
            step = sampling.steps[number]
            v = policy.velocity(x, step.sigma, condition, sampling.guidance, sampling.size)
            if number not in sampling.noise_steps:
                x = euler(x, v, step)
                continue
            dynamics = DYNAMICS[sampling.dynamics]  # "ode" is none: it has no noise steps
            transition = dynamics.transition(x, v, step)
            draws = [NoiseKey(k.prompt_id, k.image, k.seed, number) for k in keys]
            after = transition.mean + transition.std * policy.noise(sampling.size, draws)
            if sampling.is_trained(number):
                log_prob = dynamics.log_prob(after, transition) if "log_prob" in sampling.keeps else None
                kept.append(Kept(number, x, after, log_prob, transition.mean if "mean" in sampling.keeps else None))
            x = after
    # Copies made outside inference mode, which a trained pass may save for its backward.
    return Trajectory(x.clone(), [step.map(lambda tensor: tensor.clone()) for step in kept])
