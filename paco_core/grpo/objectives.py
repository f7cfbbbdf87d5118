"""Objectives: the passes behind a loss, through noisy transitions, the forward process, or pairs of ranked images.

An objective runs exactly the passes that its loss and settings need: the trained one; the old one only if
log-probabilities are recomputed, or for the second adapter of nft and dpo; the reference one only if KL has weight.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch

from paco_core.config.params import PolicyTraining
from paco_core.grpo.dynamics import DYNAMICS
from paco_core.grpo.losses import (
    FORWARD_LOSS,
    LOSSES,
    OFFLINE,
    OLD_DECAYS,
    LossInputs,
    NftInputs,
    PairErrors,
    gaussian_kl,
    nft,
)
from paco_core.grpo.rollout import NoisyStep, Sampling
from paco_core.grpo.sampling import Bucket, Experience
from paco_core.policies.base import Policy

OLD = "old"  # name of nft's second adapter
REFERENCE = "reference"  # name of dpo's second adapter: the policy before training
FORWARD_NOISE = 1_000_000  # added to the step of a noise key: noise of the forward process, not of a transition


@dataclass(frozen=True)
class MicroBatch:
    """Samples of one size, passed forward and backward together at one step; identical samples share a pass.

    ``groups``: rows of the bucket's tensors, those of identical samples together.
    """

    bucket: Bucket
    step: int
    groups: Sequence[Sequence[int]]

    @property
    def rows(self) -> list[int]:
        """Rows of the bucket's tensors."""
        return [row for group in self.groups for row in group]

    @property
    def samples(self) -> list[int]:
        """Their places in the epoch."""
        return [int(sample) for sample in self.bucket.samples[self.rows]]


@dataclass(frozen=True)
class Terms:
    """Loss of each sample (N,), and the objective's metrics of each sample (N,), by name."""

    loss: torch.Tensor
    metrics: dict[str, torch.Tensor] = field(default_factory=dict)


class Objective(ABC):
    """The part of a learner that depends on the loss."""

    keeps: frozenset[str] = frozenset()  # tensors that the rollout keeps of each trained noise step
    keeps_clean = True  # whether the rollout keeps the clean latents
    images = 1  # that a pass takes of each sample
    as_sampled = False  # whether a trained pass begins where the rollout's did
    learns_at_zero = True  # whether a sample of advantage 0 has a gradient
    metrics: Sequence[str] = ()  # names of :attr:`Terms.metrics`

    @abstractmethod
    def terms(self, experience: Experience, batch: MicroBatch) -> Terms:
        """The trained pass of one micro-batch."""

    def steps(self, sampling: Sampling) -> list[int]:
        """The steps that are trained."""
        return list(sampling.train_steps or range(len(sampling.steps)))

    def behaviour(self) -> AbstractContextManager[object]:
        """Context with the weights that sample."""
        return nullcontext()

    def prepare(self, experience: Experience, batches: Iterable[MicroBatch]) -> None:  # noqa: B027
        """Run the passes that are due before the epoch's first update."""

    def after_epoch(self, finished: int) -> None:  # noqa: B027
        """Move what moves once per epoch, after ``finished`` finished epochs."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """The objective's state for a checkpoint; each tensor is shaped like a trained parameter."""
        return {}


def build_objective(policy: Policy, params: PolicyTraining) -> Objective:
    """The objective of ``params.loss``; attaches the adapters that it needs to the policy."""
    if params.loss in OFFLINE:
        return OfflineObjective(policy, params)
    return ForwardObjective(policy, params) if params.loss == FORWARD_LOSS else TransitionObjective(policy, params)


def _advantages(experience: Experience, batch: MicroBatch, limit: float, device: torch.device) -> torch.Tensor:
    values = torch.as_tensor(experience.advantages[batch.samples], dtype=torch.float32, device=device)
    return values.clamp(-limit, limit)


def _weighted_kl(experience: Experience, batch: MicroBatch, beta: float, distance: torch.Tensor) -> torch.Tensor:
    """The weighted distance to the reference of each sample (N,); 0 where the mask is."""
    if experience.kl_mask is None:
        return beta * distance
    mask = torch.as_tensor(experience.kl_mask[batch.samples], dtype=distance.dtype, device=distance.device)
    return beta * distance * mask


class TransitionObjective(Objective):
    """Policy gradient on the noisy steps of the rollout: ppo, grpo_guard."""

    keeps_clean = False
    as_sampled = True

    def __init__(self, policy: Policy, params: PolicyTraining) -> None:
        self.policy, self.params = policy, params
        self.loss = LOSSES[params.loss]
        self.learns_at_zero = params.kl.beta > 0
        self.metrics = ("ratio", "kl") if params.kl.beta > 0 else ("ratio",)
        self.recomputes = params.old_log_prob == "recomputed"
        self.keeps = self.loss.keeps - {"log_prob", "mean"} if self.recomputes else self.loss.keeps
        self._old: dict[int, NoisyStep] = {}

    def steps(self, sampling: Sampling) -> list[int]:
        return list(sampling.train_steps or sampling.noise_steps)

    def _velocity(self, experience: Experience, batch: MicroBatch, noisy: NoisyStep) -> torch.Tensor:
        """The velocity of each sample (N, L, C); identical samples share a pass."""
        sampling, counts = batch.bucket.sampling, [len(group) for group in batch.groups]
        first = [end - count for end, count in zip(accumulate(counts), counts, strict=True)]
        condition = experience.conditions([batch.samples[place] for place in first])
        velocity = self.policy.velocity(
            noisy.before[first], sampling.steps[batch.step].sigma, condition, sampling.guidance, sampling.size
        )
        return velocity.repeat_interleave(torch.tensor(counts, device=velocity.device), dim=0)

    def prepare(self, experience: Experience, batches: Iterable[MicroBatch]) -> None:
        """Recompute the log-probabilities that the rollout did not keep, in the micro-batches that will be trained."""
        self._old = {}
        if not self.recomputes:
            return
        with torch.no_grad():
            for batch in batches:
                noisy = batch.bucket.noisy_steps[batch.step].take(batch.rows)
                dynamics = DYNAMICS[batch.bucket.sampling.dynamics]
                step = batch.bucket.sampling.steps[batch.step]
                old = dynamics.transition(noisy.before, self._velocity(experience, batch, noisy), step)
                mean = old.mean if "mean" in self.loss.keeps else None
                self._old[id(batch)] = replace(noisy, log_prob=dynamics.log_prob(noisy.after, old), mean=mean)

    def terms(self, experience: Experience, batch: MicroBatch) -> Terms:
        sampling, kl = batch.bucket.sampling, self.params.kl
        dynamics, step = DYNAMICS[sampling.dynamics], sampling.steps[batch.step]
        noisy = self._old.get(id(batch)) or batch.bucket.noisy_steps[batch.step].take(batch.rows)
        old_log_prob = noisy.log_prob
        if old_log_prob is None:
            raise ValueError("the rollout kept no log-probabilities and prepare() was not called to recompute them")
        reference = None
        if kl.beta > 0:
            with torch.no_grad(), self.policy.using(None):
                reference = dynamics.transition(noisy.before, self._velocity(experience, batch, noisy), step).mean
        transition = dynamics.transition(noisy.before, self._velocity(experience, batch, noisy), step)
        log_prob = dynamics.log_prob(noisy.after, transition)
        terms = self.loss.function(
            LossInputs(
                log_prob=log_prob,
                old_log_prob=old_log_prob,
                advantages=_advantages(experience, batch, self.params.max_advantage, log_prob.device),
                clip_range=self.params.clip_range,
                step=step,
                transition=transition,
                error_weight=dynamics.error_weight(transition.std),
                old_mean=noisy.mean,
            )
        )
        metrics = {"ratio": terms.ratio.detach()}
        if reference is None:
            return Terms(terms.loss, metrics)
        distance = gaussian_kl(transition.mean, reference, transition, step, kl.form)
        loss = terms.loss + _weighted_kl(experience, batch, kl.beta, distance)
        return Terms(loss, {**metrics, "kl": distance.detach()})

    def after_epoch(self, finished: int) -> None:  # noqa: ARG002
        self._old = {}


class ForwardObjective(Objective):
    """nft: clean latents of the rollout, noised again; a second adapter, `old`, samples and is compared with.

    At advantage 0, both implicit policies must be equally near, which regularizes the trained adapter towards `old`.
    """

    def __init__(self, policy: Policy, params: PolicyTraining) -> None:
        self.policy, self.params = policy, params
        self.metrics = ("kl",) if params.kl.beta > 0 else ()
        self.decay = OLD_DECAYS[params.nft.decay]
        policy.copy_adapter(OLD)
        self.old = policy.adapter(OLD)
        self.trained = policy.trainable()

    def behaviour(self) -> AbstractContextManager[object]:
        return self.policy.using(OLD)

    def terms(self, experience: Experience, batch: MicroBatch) -> Terms:
        sampling, nft_params, kl = batch.bucket.sampling, self.params.nft, self.params.kl
        sigma = sampling.steps[batch.step].sigma
        assert batch.bucket.clean is not None
        clean = batch.bucket.clean[batch.rows]
        noised = (1.0 - sigma) * clean + sigma * _forward_noise(self.policy, experience, batch)
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
        return Terms(loss + _weighted_kl(experience, batch, kl.beta, distance), {"kl": distance.detach()})

    def after_epoch(self, finished: int) -> None:
        """`old` follows the trained adapter: old <- decay old + (1 - decay) trained."""
        share = 1.0 - self.decay.at(finished)
        with torch.no_grad():
            for name, value in self.old.items():
                value.copy_(self.trained[name]) if share == 1.0 else value.lerp_(self.trained[name], share)

    def tensors(self) -> dict[str, torch.Tensor]:
        return dict(self.old)


class OfflineObjective(Objective):
    """dpo, sft: latents of the best and the worst image of a prompt, with the same noise at the trained steps."""

    def __init__(self, policy: Policy, params: PolicyTraining) -> None:
        self.policy, self.params, self.loss = policy, params, OFFLINE[params.loss]
        self.images = 2 if self.loss.pairs else 1
        self.metrics = ("preferred",) if self.loss.pairs else ()
        if self.loss.pairs:
            policy.copy_adapter(REFERENCE)  # made again at every start, so no checkpoint contains it

    def terms(self, experience: Experience, batch: MicroBatch) -> Terms:
        sampling = batch.bucket.sampling
        sigma = sampling.steps[batch.step].sigma
        assert batch.bucket.clean is not None
        pairs = batch.bucket.clean[batch.rows]  # (N, 2, L, C): the best, the worst
        noise = _forward_noise(self.policy, experience, batch).repeat(self.images, 1, 1)
        clean = torch.cat([pairs[:, place] for place in range(self.images)])
        noised, target = (1.0 - sigma) * clean + sigma * noise, noise - clean
        condition = experience.conditions(batch.samples * self.images)

        def errors() -> list[torch.Tensor]:
            """The errors of the best images, and of the worst, (N,) each."""
            velocity = self.policy.velocity(noised, sigma, condition, sampling.guidance, sampling.size)
            return list(((velocity - target) ** 2).flatten(1).mean(dim=1).chunk(self.images))

        reference = []
        if self.loss.pairs:
            with torch.no_grad(), self.policy.using(REFERENCE):
                reference = errors()
        pair = PairErrors(*errors(), *reference)
        loss = self.loss.function(pair, self.params.dpo.beta)
        return Terms(loss, {"preferred": pair.margin.detach() > 0} if self.loss.pairs else {})


def _forward_noise(policy: Policy, experience: Experience, batch: MicroBatch) -> torch.Tensor:
    """Noise of the forward process (N, L, C), drawn for each sample and step."""
    keys = [replace(experience.keys[sample], step=FORWARD_NOISE + batch.step) for sample in batch.samples]
    return policy.noise(batch.bucket.sampling.size, keys)
