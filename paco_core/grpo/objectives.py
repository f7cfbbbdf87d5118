"""The passes behind a loss: through kept noisy transitions, or through the forward process.

An objective runs exactly the passes that its loss and settings need: the trained one; the old one only where
log-probabilities are recomputed, or for the second adapter of nft; the reference one only where KL has weight.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol

import torch

from paco_core.config.params import PolicyTraining
from paco_core.grpo.dynamics import DYNAMICS
from paco_core.grpo.experience import Experience, Learns, MicroBatch
from paco_core.grpo.losses import (
    LOSSES,
    OLD_DECAYS,
    LossInputs,
    NftInputs,
    gaussian_kl,
    nft,
)
from paco_core.grpo.rollout import NoisyStep, Sampling
from paco_core.policies.base import Policy

OLD = "old"  # name of the second adapter
FORWARD_NOISE = 1_000_000  # added to the step of a noise key: noise of the forward process, not of a transition


@dataclass(frozen=True)
class Terms:
    """Loss a sample (N,); ratio (N,) where the loss has one; KL (N,) where weighed; margin (N,) of pairs."""

    loss: torch.Tensor
    ratio: torch.Tensor | None = None
    kl: torch.Tensor | None = None
    margin: torch.Tensor | None = None


class Objective(Learns, Protocol):
    """What a learner asks of a loss."""

    keeps: frozenset[str]  # tensors that the rollout keeps of each trained noise step
    keeps_clean: bool
    pictures: int  # that a pass takes of each sample

    def steps(self, sampling: Sampling) -> list[int]:
        """The steps that are trained."""

    def behaviour(self) -> AbstractContextManager[object]:
        """The weights that sample."""

    def prepare(self, experience: Experience, batches: Iterable[MicroBatch]) -> None:
        """Passes that are due before the epoch's first update."""

    def terms(self, experience: Experience, batch: MicroBatch) -> Terms:
        """The trained pass of one micro-batch."""

    def after_epoch(self, finished: int) -> None:
        """What moves once an epoch, after ``finished`` finished ones."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """State of its own, for a checkpoint; each tensor shaped like a trained parameter."""


def _advantages(experience: Experience, batch: MicroBatch, limit: float, device: torch.device) -> torch.Tensor:
    given = torch.as_tensor(experience.advantages[batch.samples], dtype=torch.float32, device=device)
    return given.clamp(-limit, limit)


def _held(experience: Experience, batch: MicroBatch, beta: float, distance: torch.Tensor) -> torch.Tensor:
    """The weighed distance to the reference (N,), where the KL counts."""
    if experience.held is None:
        return beta * distance
    return (
        beta * distance * torch.as_tensor(experience.held[batch.samples], dtype=distance.dtype, device=distance.device)
    )


class TransitionObjective:
    """Policy gradient on the noisy steps of the rollout: ppo, grpo_guard."""

    keeps_clean = False
    pictures = 1
    as_sampled = True

    def __init__(self, policy: Policy, params: PolicyTraining) -> None:
        self.policy, self.params = policy, params
        self.loss = LOSSES[params.loss]
        self.learns_at_zero = params.kl.beta > 0
        self.recomputes = params.old_log_prob == "recomputed"
        self.keeps = self.loss.keeps - {"log_prob", "mean"} if self.recomputes else self.loss.keeps
        self._old: dict[int, NoisyStep] = {}

    def steps(self, sampling: Sampling) -> list[int]:
        return list(sampling.train_steps or sampling.noise_steps)

    def behaviour(self) -> AbstractContextManager[object]:
        return nullcontext()

    def _velocity(self, experience: Experience, batch: MicroBatch, kept: NoisyStep) -> torch.Tensor:
        """Of each sample (N, L, C); equal samples share a pass."""
        sampling, counts = batch.bucket.sampling, [len(places) for places in batch.same]
        first = [end - count for end, count in zip(accumulate(counts), counts, strict=True)]
        condition = experience.conditions([batch.samples[place] for place in first])
        passed = self.policy.velocity(
            kept.before[first], sampling.steps[batch.step].sigma, condition, sampling.guidance, sampling.size
        )
        return passed.repeat_interleave(torch.tensor(counts, device=passed.device), dim=0)

    def prepare(self, experience: Experience, batches: Iterable[MicroBatch]) -> None:
        """Recompute what the rollout was asked not to keep, in the very batches that will be trained."""
        self._old = {}
        if not self.recomputes:
            return
        with torch.no_grad():
            for batch in batches:
                kept = batch.bucket.kept[batch.step].take(batch.places)
                dynamics = DYNAMICS[batch.bucket.sampling.dynamics]
                step = batch.bucket.sampling.steps[batch.step]
                found = dynamics.transition(kept.before, self._velocity(experience, batch, kept), step)
                mean = found.mean if "mean" in self.loss.keeps else None
                self._old[id(batch)] = replace(kept, log_prob=dynamics.log_prob(kept.after, found), mean=mean)

    def terms(self, experience: Experience, batch: MicroBatch) -> Terms:
        sampling, kl = batch.bucket.sampling, self.params.kl
        dynamics, step = DYNAMICS[sampling.dynamics], sampling.steps[batch.step]
        kept = self._old.get(id(batch)) or batch.bucket.kept[batch.step].take(batch.places)
        old = kept.log_prob
        if old is None:
            raise ValueError("the rollout kept no log-probabilities and prepare() was not called to recompute them")
        reference = None
        if kl.beta > 0:
            with torch.no_grad(), self.policy.using(None):
                reference = dynamics.transition(kept.before, self._velocity(experience, batch, kept), step).mean
        transition = dynamics.transition(kept.before, self._velocity(experience, batch, kept), step)
        log_prob = dynamics.log_prob(kept.after, transition)
        found = self.loss.function(
            LossInputs(
                log_prob=log_prob,
                old_log_prob=old,
                advantages=_advantages(experience, batch, self.params.max_advantage, log_prob.device),
                clip_range=self.params.clip_range,
                step=step,
                transition=transition,
                error_weight=dynamics.error_weight(transition.std),
                old_mean=kept.mean,
            )
        )
        terms = Terms(found.loss, found.ratio.detach())
        if reference is None:
            return terms
        distance = gaussian_kl(transition.mean, reference, transition, step, kl.form)
        return replace(terms, loss=found.loss + _held(experience, batch, kl.beta, distance), kl=distance.detach())

    def after_epoch(self, finished: int) -> None:  # noqa: ARG002
        self._old = {}

    def tensors(self) -> dict[str, torch.Tensor]:
        return {}


class ForwardObjective:
    """nft: clean latents of the rollout noised anew; a second adapter, `old`, samples and is compared with."""

    keeps: frozenset[str] = frozenset()
    keeps_clean = True
    pictures = 1
    as_sampled = False
    learns_at_zero = (
        True  # advantage 0 asks the implicit policies to be equally near: it holds the trained one at `old`
    )

    def __init__(self, policy: Policy, params: PolicyTraining) -> None:
        self.policy, self.params = policy, params
        self.decay = OLD_DECAYS[params.nft.decay]
        policy.copy_adapter(OLD)
        self.old = policy.adapter(OLD)
        self.trained = policy.trainable()

    def steps(self, sampling: Sampling) -> list[int]:
        return list(sampling.train_steps or range(len(sampling.steps)))

    def behaviour(self) -> AbstractContextManager[object]:
        return self.policy.using(OLD)

    def prepare(self, experience: Experience, batches: Iterable[MicroBatch]) -> None:
        pass

    def terms(self, experience: Experience, batch: MicroBatch) -> Terms:
        sampling, nft_params, kl = batch.bucket.sampling, self.params.nft, self.params.kl
        sigma = sampling.steps[batch.step].sigma
        assert batch.bucket.clean is not None
        clean = batch.bucket.clean[batch.places]
        keys = [replace(experience.keys[sample], step=FORWARD_NOISE + batch.step) for sample in batch.samples]
        noised = (1.0 - sigma) * clean + sigma * self.policy.noise(sampling.size, keys)
        condition = experience.conditions(batch.samples)

        def velocity() -> torch.Tensor:
            return self.policy.velocity(noised, sigma, condition, sampling.guidance, sampling.size)

        with torch.no_grad(), self.policy.using(OLD):
            old = velocity()
        reference = None
        if kl.beta > 0:
            with torch.no_grad(), self.policy.using(None):
                reference = velocity()
        new = velocity()
        loss = nft(
            NftInputs(
                clean=clean,
                noised=noised,
                velocity=new,
                old_velocity=old,
                sigma=sigma,
                advantages=_advantages(experience, batch, self.params.max_advantage, new.device),
                max_advantage=self.params.max_advantage,
                mix=nft_params.mix,
            )
        )
        if reference is None:
            return Terms(loss)
        distance = ((new - reference) ** 2).flatten(1).mean(dim=1)  # as in DiffusionNFT's code
        return Terms(loss + _held(experience, batch, kl.beta, distance), kl=distance.detach())

    def after_epoch(self, finished: int) -> None:
        """`old` follows the trained adapter: old <- decay old + (1 - decay) trained."""
        share = 1.0 - self.decay.at(finished)
        with torch.no_grad():
            for name, value in self.old.items():
                value.copy_(self.trained[name]) if share == 1.0 else value.lerp_(self.trained[name], share)

    def tensors(self) -> dict[str, torch.Tensor]:
        return dict(self.old)
