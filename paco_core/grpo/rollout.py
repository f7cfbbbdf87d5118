"""Rollout: sampling with a few noisy steps. It keeps only the tensors of the trajectory that the loss needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch

from paco_core.grpo.dynamics import DYNAMICS, Step, euler, steps_of
from paco_core.policies.base import Flow, NoiseKey, Size
from paco_core.policies.encoded import Encoded

#: Default tensors for the training pass of a policy-gradient loss. A loss can declare others.
TRANSITION = frozenset({"before", "after", "log_prob"})


@dataclass(frozen=True)
class Sampling:
    """Sampling options: image size, schedule, guidance, noisy steps, and the tensors that are kept of them."""

    size: Size
    steps: Sequence[Step]
    guidance: float
    noise_steps: tuple[int, ...] = ()
    dynamics: str = "flow_sde"
    shared_noise: bool = False  # one initial noise per group
    keeps: frozenset[str] = TRANSITION  # tensors of :class:`NoisyStep`
    train_steps: tuple[int, ...] = ()  # noise steps whose tensors are kept; empty = all

    @classmethod
    def for_policy(  # noqa: PLR0913 - the fields of the class
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
        """Build the options with the policy's schedule for ``size``.

        Args:
            steps: number of sampling steps.
            noise_steps: numbers of the noisy steps.
            keeps: tensors of :class:`NoisyStep` to keep.
            train_steps: noisy steps whose tensors are kept. Empty = all.

        Raises:
            ValueError: if a noise step is outside the schedule, or is the last step (sigma 0 has no noise).
        """
        outside = [s for s in noise_steps if not 0 <= s < steps - 1]
        if outside:
            raise ValueError(f"noise steps {outside} are not among 0..{steps - 2} of {steps} sampling steps")
        schedule = steps_of(policy.sigmas(size, steps), noise_level)
        return cls(size, schedule, guidance, tuple(noise_steps), dynamics, shared_noise, keeps, tuple(train_steps))

    def is_trained(self, step: int) -> bool:
        """Whether tensors of a noise step are kept."""
        return bool(self.keeps) and (not self.train_steps or step in self.train_steps)

    def start(self, key: NoiseKey) -> NoiseKey:
        """The key of the initial noise of a sample. Shared noise has image -1."""
        return replace(key, image=-1) if self.shared_noise else key

    def is_shared(self, step: int) -> bool:
        """Whether samples with equal initial noise are still equal at a step, up to the first noisy step."""
        return self.shared_noise and step <= min(self.noise_steps, default=len(self.steps))


def group_identical(rows: Sequence[int], starts: Sequence[NoiseKey]) -> list[list[int]]:
    """Group the indices of samples with equal prompt and initial noise, in order of first appearance."""
    groups: dict[tuple[int, NoiseKey], list[int]] = {}
    for place, start in enumerate(zip(rows, starts, strict=True)):
        groups.setdefault(start, []).append(place)
    return list(groups.values())


def expand_groups(values: torch.Tensor, groups: Sequence[Sequence[int]]) -> torch.Tensor:
    """Expand (groups, ...) to (N, ...): each sample gets the row of its group of :func:`group_identical`."""
    number_of = {place: number for number, places in enumerate(groups) for place in places}
    return values[[number_of[place] for place in range(len(number_of))]]


@dataclass(frozen=True)
class NoisyStep:
    """One noisy step of N samples: latents before and after (N, L, C), and optionally log-probability and mean."""

    step: int
    before: torch.Tensor
    after: torch.Tensor
    log_prob: torch.Tensor | None = None
    mean: torch.Tensor | None = None

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> NoisyStep:
        """Apply ``change`` to every tensor (N, ...)."""
        log_prob = None if self.log_prob is None else change(self.log_prob)
        mean = None if self.mean is None else change(self.mean)
        return NoisyStep(self.step, change(self.before), change(self.after), log_prob, mean)

    def take(self, rows: Sequence[int]) -> NoisyStep:
        index = list(rows)
        return self.map(lambda tensor: tensor[index])


@dataclass(frozen=True)
class Trajectory:
    """Clean latents (N, L, C), the trained noisy steps, and the row of ``encoded`` of each sample."""

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
    """Sample one image per row by ODE steps, except at the noise steps.

    Up to the first noisy step, samples of a prompt with equal initial noise share a pass. Trained steps have the
    precision of training, all other steps that of inference (:meth:`Flow.inference_precision`).

    Args:
        encoded: the prompts.
        rows: row of ``encoded`` for each sample.
        keys: noise key of each sample; see :meth:`Sampling.start` for the initial noise.
    """
    starts = [sampling.start(key) for key in keys]
    groups = group_identical(rows, starts)
    condition_per_sample = encoded.take(rows)
    noisy_steps: list[NoisyStep] = []
    with (
        torch.no_grad()
    ):  # not inference mode, because training passes read tensors that a model caches in its first pass
        x = policy.noise(sampling.size, [starts[places[0]] for places in groups])
        condition = condition_per_sample
        if len(groups) < len(rows):
            condition = encoded.take([rows[places[0]] for places in groups])
        for number, step in enumerate(sampling.steps):
            is_trained = number in sampling.noise_steps and sampling.is_trained(number)
            with nullcontext() if is_trained else policy.inference_precision():
                v = policy.velocity(x, step.sigma, condition, sampling.guidance, sampling.size)
            if number not in sampling.noise_steps:
                x = euler(x, v, step)
                continue
            if condition is not condition_per_sample:  # from here on, the samples of a group differ
                x, v, condition = expand_groups(x, groups), expand_groups(v, groups), condition_per_sample
            dynamics = DYNAMICS[sampling.dynamics]  # never "ode", which has no noise steps
            transition = dynamics.transition(x, v, step)
            draws = [NoiseKey(k.prompt_id, k.image, k.seed, number) for k in keys]
            after = transition.mean + transition.std * policy.noise(sampling.size, draws)
            if sampling.is_trained(number):
                log_prob = dynamics.log_prob(after, transition) if "log_prob" in sampling.keeps else None
                noisy_steps.append(
                    NoisyStep(number, x, after, log_prob, transition.mean if "mean" in sampling.keeps else None)
                )
            x = after
        if condition is not condition_per_sample:
            x = expand_groups(x, groups)
    return Trajectory(x, noisy_steps, encoded, rows)
