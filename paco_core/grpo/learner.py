"""From advantages to weights: trained passes at the noise steps, optimiser, EMA, health of the update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from paco_core.config.params import PolicyTraining
from paco_core.grpo import ratio
from paco_core.grpo.experience import Experience, MicroBatch, micro_batches
from paco_core.grpo.losses import FORWARD_LOSS, OFFLINE
from paco_core.grpo.objectives import ForwardObjective, Objective, Terms, TransitionObjective
from paco_core.grpo.offline import OfflineObjective
from paco_core.policies.base import Policy
from paco_core.training import optimizers
from paco_core.training.checkpoint import pack, unpack
from paco_core.training.ema import Ema
from paco_core.training.processes import Processes
from paco_core.training.updates import Updates


@dataclass(frozen=True)
class UpdateHealth:
    """What an epoch's updates looked like; NaN where a loss knows no such figure.

    ``ratio_gap``: largest |ratio - 1| before the first update, 0 but for rounding; ``first_clip_fraction``: share of
    that update's samples outside the clip range. ``ratio_mean``, ``ratio_std``, ``clip_fraction``: over all trained
    samples. ``grad_norm``: mean over updates, before clipping. ``kl``: mean distance to the policy without adapter,
    where it has weight. ``preferred``: share of trained pairs whose best picture gained more on the reference than
    the worst.
    """

    ratio_gap: float
    first_clip_fraction: float
    ratio_mean: float
    ratio_std: float
    clip_fraction: float
    grad_norm: float
    loss: float
    kl: float
    preferred: float
    trained: int  # samples passed forward and backward; those without a gradient are not

    def figures(self) -> dict[str, float]:
        """By name, without those that the loss does not know."""
        return {name: float(value) for name, value in vars(self).items() if not np.isnan(value)}


class _Tally:
    """Ratios, losses and distances of an epoch's micro-batches, each at the place that its number gives it."""

    def __init__(self, batches: list[list[MicroBatch]]) -> None:
        flat = [batch for update in batches for batch in update]
        ends = np.cumsum([len(batch.places) for batch in flat], dtype=int)
        self.spans = [slice(end - len(batch.places), end) for end, batch in zip(ends, flat, strict=True)]
        self.first = sum(len(batch.places) for batch in next(filter(None, batches), []))  # of the first update's passes
        count = int(ends[-1]) if flat else 0
        self.ratio, self.kl, self.preferred = (torch.zeros(count, dtype=torch.float64) for _ in range(3))
        self.loss = torch.zeros(len(flat), dtype=torch.float64)
        self.has_ratio = self.has_kl = self.has_pairs = False

    def add(self, number: int, loss: float, terms: Terms) -> None:
        self.loss[number] = loss
        if terms.ratio is not None:
            self.has_ratio = True
            self.ratio[self.spans[number]] = terms.ratio.double().cpu()
        if terms.kl is not None:
            self.has_kl = True
            self.kl[self.spans[number]] = terms.kl.double().cpu()
        if terms.margin is not None:
            self.has_pairs = True
            self.preferred[self.spans[number]] = (terms.margin > 0).double().cpu()

    def start(self, processes: Processes, clip: float) -> tuple[float, float]:
        """Largest |ratio - 1| of the first update's samples, and the share of them outside the clip range."""
        distance = (processes.sum(self.ratio[: self.first]) - 1.0).abs()
        return float(distance.max()), float((distance > clip).double().mean())

    def health(
        self, processes: Processes, start: tuple[float, float], norms: list[float], trained: int, clip: float
    ) -> UpdateHealth:
        ratios, kl, preferred, loss = (processes.sum(p) for p in (self.ratio, self.kl, self.preferred, self.loss))
        known = processes.sum(torch.tensor([self.has_ratio, self.has_kl, self.has_pairs], dtype=torch.int64))
        has_ratio, has_kl, has_pairs = (bool(flag) for flag in known)
        if not len(ratios):
            return UpdateHealth(0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, np.nan, np.nan, 0)
        nan = float("nan")
        return UpdateHealth(
            ratio_gap=start[0],
            first_clip_fraction=start[1],
            ratio_mean=float(ratios.mean()) if has_ratio else nan,
            ratio_std=float(ratios.std(unbiased=False)) if has_ratio else nan,
            clip_fraction=float(((ratios - 1.0).abs() > clip).double().mean()) if has_ratio else nan,
            grad_norm=float(np.mean(norms)),
            loss=float(np.sum(loss.tolist())) / max(1, len(norms)),
            kl=float(kl.mean()) if has_kl else nan,
            preferred=float(preferred.mean()) if has_pairs else nan,
            trained=trained,
        )


def objective(policy: Policy, params: PolicyTraining) -> Objective:
    """The objective of ``params.loss``; attaches what it needs to the policy."""
    if params.loss in OFFLINE:
        return OfflineObjective(policy, params)
    return ForwardObjective(policy, params) if params.loss == FORWARD_LOSS else TransitionObjective(policy, params)


class Learner:
    """Owns the optimiser and the averaged weights of a policy's adapter."""

    def __init__(
        self,
        policy: Policy,
        params: PolicyTraining,
        processes: Processes | None = None,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.policy, self.params, self.say = policy, params, say
        self.processes = processes or Processes()
        self.parameters = policy.trainable()
        self.objective = objective(policy, params)
        optimizer = optimizers.build(self.parameters.values(), params)
        self.updates = Updates(self.parameters, optimizer, params.max_grad_norm, self.processes)
        self.ema = Ema(self.parameters, params.ema_decay, params.ema_every)

    def learn(self, experience: Experience) -> UpdateHealth:
        """Run the epoch's updates; each takes its own share of the groups, once.

        Raises:
            NotFinite: when a gradient is not finite; no weight has been changed by it.
            RuntimeError: when the trained pass does not find the rollout's log-probabilities.
        """
        params, objective = self.params, self.objective
        steps = objective.steps(experience.buckets[0].sampling)
        spans = experience.spans(params.updates_per_epoch)
        together = max(1, params.train_batch // objective.pictures)
        batches = [list(micro_batches(experience, span, steps, together, objective)) for span in spans]
        own = self.processes.mine
        numbers = iter(range(sum(len(update) for update in batches)))
        numbered = [[(next(numbers), batch) for batch in update] for update in batches]
        idle = [self.processes.idle(number for number, _ in update) for update in numbered]
        fillers = [batch for update, count in zip(numbered, idle, strict=True) for _, batch in update[:1] * count]
        mine = [batch for update in numbered for number, batch in update if own(number)]
        objective.prepare(experience, mine + fillers)
        tally, norms, trained = _Tally(batches), [], 0
        start = None
        for number, update in enumerate(numbered):
            if not update:
                continue
            here = [(place, batch) for place, batch in update if own(place)]
            self.updates.begin(single_pass=len(update) == 1 and self.processes.world == 1)
            for place, batch in here:
                terms = objective.terms(experience, batch)
                loss = terms.loss.sum() / (len(spans[number]) * len(steps))
                self.updates.backward(loss)
                tally.add(place, float(loss.detach()), terms)
            for _ in range(idle[number]):  # the others need this process in their passes
                self.updates.backward(objective.terms(experience, update[0][1]).loss.sum(), counts=False)
            self.updates.finish()
            start = start or self._start(tally)
            norms.append(self.updates.step())
            self.ema.update(self.parameters)
            trained += len({sample for _, batch in update for sample in batch.samples})
        return tally.health(self.processes, start or (0.0, 0.0), norms, trained, params.clip_range)

    def _start(self, tally: _Tally) -> tuple[float, float]:
        """How far ratios are from one before the first update, and how many are outside the clip; NaN without ratio."""
        if not ratio.compares(self.params):
            return np.nan, np.nan
        gap, share = tally.start(self.processes, self.params.clip_range)
        if gap > (bound := ratio.bound(self.params)):
            raise RuntimeError(
                f"|ratio - 1| before the first update is {gap:.3g}, more than {bound:g}, and {share:.0%} of samples "
                f"are outside clip_range={self.params.clip_range:g}: the training pass does not match the sampling; "
                f"{ratio.REMEDY}, or raise policies.defaults.max_ratio_gap"
            )
        if self.processes.main and (warning := ratio.clipped_early(share, self.params)):
            self.say(warning)
        return gap, share

    def tensors(self) -> dict[str, torch.Tensor]:
        """Weights, averaged weights, optimiser moments and the random state of each rank, for a checkpoint.

        Weights, averages and moments are shaped like their parameters, random states (bytes,).
        """
        own = torch.get_rng_state()
        states = torch.zeros((self.processes.world, len(own)), dtype=own.dtype)
        states[self.processes.rank] = own
        rng = {str(rank): row for rank, row in enumerate(self.processes.sum(states))}
        groups = {"weights": self.parameters, "ema": self.ema.shadow, "optimizer": self.updates.moments(), "rng": rng}
        return pack({**groups, "objective": self.objective.tensors()})

    def restore(self, tensors: dict[str, torch.Tensor], optimizer_steps: int) -> None:
        """Put back what :meth:`tensors` gave, shaped like that, bit for bit."""
        for name, value in unpack(tensors, "weights").items():
            self.parameters[name].data.copy_(value)
        for name, value in unpack(tensors, "ema").items():
            self.ema.shadow[name].copy_(value)
        self.ema.steps = optimizer_steps
        for name, value in unpack(tensors, "objective").items():
            self.objective.tensors()[name].data.copy_(value)
        self.updates.restore(unpack(tensors, "optimizer"))
        states = unpack(tensors, "rng")
        torch.set_rng_state(states.get(str(self.processes.rank), states["0"]))
