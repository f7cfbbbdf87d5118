"""Rollout: sampling with a few noisy steps; of the trajectory it keeps only the tensors that the loss needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch

from paco_core.grpo.dynamics import DYNAMICS, Step, euler, steps_of
from paco_core.policies.base import Flow, NoiseKey, Size
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
    keeps: frozenset[str] = TRANSITION  # tensors of :class:`NoisyStep`
    train_steps: tuple[int, ...] = ()  # noise steps of which something is kept; none named = all

    @classmethod
    def for_policy(  # noqa: PLR0913 - a sampling's own fields
        cls,
        policy: Flow,
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

    def is_trained(self, step: int) -> bool:
        """Whether anything is kept of a noise step."""
        return bool(self.keeps) and (not self.train_steps or step in self.train_steps)

    def start(self, key: NoiseKey) -> NoiseKey:
        """Names the initial noise of a sample; a shared one is drawn for image -1."""
        return replace(key, image=-1) if self.shared_noise else key

    def is_shared(self, step: int) -> bool:
        """Whether samples of one start are still equal when they come to a step: up to the first noisy one."""
        return self.shared_noise and step <= min(self.noise_steps, default=len(self.steps))


def group_identical(rows: Sequence[int], starts: Sequence[NoiseKey]) -> list[list[int]]:
    """Places of samples with the same prompt and the same initial noise, in the order of their first ones."""
    groups: dict[tuple[int, NoiseKey], list[int]] = {}
    for place, start in enumerate(zip(rows, starts, strict=True)):
        groups.setdefault(start, []).append(place)
    return list(groups.values())


def expand_groups(values: torch.Tensor, groups: Sequence[Sequence[int]]) -> torch.Tensor:
    """(N, ...), a row for each sample, from (groups, ...), a row for each group of :func:`group_identical`."""
    number_of = {place: number for number, places in enumerate(groups) for place in places}
    return values[[number_of[place] for place in range(len(number_of))]]


@dataclass(frozen=True)
class NoisyStep:
    """One noisy step of N samples: latents before and after (N, L, C), and, where asked for, log p and mean."""

    step: int
    before: torch.Tensor
    after: torch.Tensor
    log_prob: torch.Tensor | None = None
    mean: torch.Tensor | None = None

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> NoisyStep:
        """The same with every tensor changed; ``change`` takes (N, ...)."""
        log_prob = None if self.log_prob is None else change(self.log_prob)
        mean = None if self.mean is None else change(self.mean)
        return NoisyStep(self.step, change(self.before), change(self.after), log_prob, mean)

    def take(self, rows: Sequence[int]) -> NoisyStep:
        index = list(rows)
        return self.map(lambda tensor: tensor[index])


@dataclass(frozen=True)
class Trajectory:
    """Clean latents (N, L, C), the trained noisy steps, and the condition of each sample: a row of ``encoded``."""

    latents: torch.Tensor
    noisy_steps: list[NoisyStep]
    encoded: Encoded
    rows: Sequence[int]


def rollout(
    policy: Flow,
    encoded: Encoded,
    rows: Sequence[int],
    keys: Sequence[NoiseKey],
    sampling: Sampling,
) -> Trajectory:
    """Sample one picture a row: ODE steps, except at the noise steps.

    Up to the first noisy step, passes are made once for all samples of a prompt that share their initial noise. A step
    that is trained is computed as its trained pass will be, the others as pictures are painted
    (:meth:`Flow.painting`).

    Args:
        encoded: the prompts.
        rows: row of ``encoded`` for each sample.
        keys: names the noise of each sample; see :meth:`Sampling.start` for its initial one.
    """
    starts = [sampling.start(key) for key in keys]
    groups = group_identical(rows, starts)
    condition_of_each = encoded.take(rows)
    noisy_steps: list[NoisyStep] = []
    with torch.no_grad():  # not inference mode: what a model caches in its first pass, trained ones read, too
        x = policy.noise(sampling.size, [starts[places[0]] for places in groups])
        condition = condition_of_each
        if len(groups) < len(rows):
            condition = encoded.take([rows[places[0]] for places in groups])
        for number, step in enumerate(sampling.steps):
            is_trained = number in sampling.noise_steps and sampling.is_trained(number)
            with nullcontext() if is_trained else policy.painting():
                v = policy.velocity(x, step.sigma, condition, sampling.guidance, sampling.size)
            if number not in sampling.noise_steps:
                x = euler(x, v, step)
                continue
            if condition is not condition_of_each:  # from here on the samples of a group differ
                x, v, condition = expand_groups(x, groups), expand_groups(v, groups), condition_of_each
            dynamics = DYNAMICS[sampling.dynamics]  # "ode" is none: it has no noise steps
            transition = dynamics.transition(x, v, step)
            draws = [NoiseKey(k.prompt_id, k.image, k.seed, number) for k in keys]
            after = transition.mean + transition.std * policy.noise(sampling.size, draws)
            if sampling.is_trained(number):
                log_prob = dynamics.log_prob(after, transition) if "log_prob" in sampling.keeps else None
                noisy_steps.append(
                    NoisyStep(number, x, after, log_prob, transition.mean if "mean" in sampling.keeps else None)
                )
            x = after
        if condition is not condition_of_each:
            x = expand_groups(x, groups)
    return Trajectory(x, noisy_steps, encoded, rows)
