"""Learner: trained passes at the noise steps, the optimizer, EMA, and the metrics of an epoch's updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count

import numpy as np
import torch

from paco_core.config.params import PolicyTraining
from paco_core.grpo.checks import RATIO_REMEDY, clipping_warning, max_ratio_gap
from paco_core.grpo.objectives import MicroBatch, Objective, build_objective
from paco_core.grpo.rollout import group_identical
from paco_core.grpo.sampling import Experience
from paco_core.policies.base import Policy
from paco_core.training import optimizers
from paco_core.training.checkpoint import pack, unpack
from paco_core.training.ema import Ema
from paco_core.training.processes import Processes
from paco_core.training.updates import Updates

#: The metrics of an epoch's updates, in the order of the log; see :meth:`Learner.learn`.
METRICS = (
    "ratio_gap", "first_clip_fraction", "ratio_mean", "ratio_std", "clip_fraction", "grad_norm", "loss", "kl",
    "preferred", "trained",
)  # fmt: skip
#: Those of an epoch in which no sample has a gradient.
NO_UPDATE = {name: 0.0 for name in METRICS if name not in ("kl", "preferred")} | {"ratio_mean": 1.0}


def micro_batches(
    experience: Experience, span: range, steps: Sequence[int], size: int, objective: Objective
) -> Iterator[MicroBatch]:
    """The samples of ``span`` that have a gradient, at every trained step; identical samples share a pass.

    Args:
        size: passes of a micro-batch at most.
    """
    gradient = ~np.isnan(experience.advantages)
    if not objective.learns_at_zero:
        gradient &= experience.advantages != 0
    for bucket in experience.buckets:
        inside = (bucket.samples >= span.start) & (bucket.samples < span.stop)
        active = np.flatnonzero(inside & gradient[bucket.samples]).tolist()
        for step in steps:
            groups = [[row] for row in active]
            if objective.as_sampled and bucket.sampling.is_shared(step):
                samples = [int(bucket.samples[row]) for row in active]
                starts = [bucket.sampling.start(experience.keys[sample]) for sample in samples]
                identical = group_identical([experience.rows[sample] for sample in samples], starts)
                groups = [[active[number] for number in group] for group in identical]
            for start in range(0, len(groups), size):
                yield MicroBatch(bucket, step, groups[start : start + size])


class Learner:
    """Owns the optimizer and the averaged weights of a policy's adapter."""

    def __init__(
        self,
        policy: Policy,
        params: PolicyTraining,
        processes: Processes | None = None,
        log: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.policy, self.params, self.log = policy, params, log
        self.processes = processes or Processes()
        self.parameters = policy.trainable()
        self.objective = build_objective(policy, params)
        optimizer = optimizers.build_optimizer(self.parameters.values(), params)
        self.updates = Updates(self.parameters, optimizer, params.max_grad_norm, self.processes)
        self.ema = Ema(self.parameters, params.ema_decay, params.ema_every)

    def learn(self, experience: Experience) -> dict[str, float]:
        """Run the epoch's updates; each update trains its own share of the groups, once.

        Returns:
            The metrics of the updates, without those that the loss does not have. ``ratio_gap``: largest |ratio - 1|
            before the first update, 0 up to rounding; ``first_clip_fraction``: share of that update's samples outside
            the clip range. ``ratio_mean``, ``ratio_std``, ``clip_fraction``: over all trained samples. ``grad_norm``:
            mean over updates, before clipping. ``loss``: mean over updates. ``kl``: mean distance to the policy
            without adapter, if it has weight. ``preferred``: share of trained pairs whose best image gained more on
            the reference than the worst. ``trained``: samples passed forward and backward.

        Raises:
            NotFinite: when a gradient is not finite; no weight has been changed by it.
            RuntimeError: when the trained pass does not find the rollout's log-probabilities.
        """
        objective, processes = self.objective, self.processes
        steps = objective.steps(experience.buckets[0].sampling)
        spans = experience.spans(self.params.updates_per_epoch)
        size = max(1, self.params.train_batch // objective.images)
        number = count()
        updates = [
            [(next(number), batch) for batch in micro_batches(experience, span, steps, size, objective)]
            for span in spans
        ]
        batches = [batch for update in updates for _, batch in update]
        if not batches:
            return dict(NO_UPDATE)
        dummies = [processes.dummy_passes(place for place, _ in update) for update in updates]
        own_batches = [batch for place, batch in enumerate(batches) if processes.owns(place)]
        repeated = [batch for update, passes in zip(updates, dummies, strict=True) for _, batch in update[:1] * passes]
        objective.prepare(experience, own_batches + repeated)
        ends = np.cumsum([len(batch.rows) for batch in batches]).tolist()
        values = {name: torch.zeros(ends[-1], dtype=torch.float64) for name in objective.metrics}
        losses, norms, trained = torch.zeros(len(batches), dtype=torch.float64), list[float](), 0
        metrics: dict[str, float] = {}
        for update, span, passes in zip(updates, spans, dummies, strict=True):
            if not update:
                continue
            self.updates.begin(single_pass=len(update) == 1 and processes.world_size == 1)
            for place, batch in update:
                if processes.owns(place):
                    terms = objective.terms(experience, batch)
                    loss = terms.loss.sum() / (len(span) * len(steps))
                    self.updates.backward(loss)
                    losses[place] = float(loss.detach())
                    for name, of_samples in terms.metrics.items():
                        values[name][ends[place] - len(batch.rows) : ends[place]] = of_samples.double().cpu()
            for _ in range(passes):  # FSDP needs the same number of passes on each rank
                self.updates.backward(objective.terms(experience, update[0][1]).loss.sum(), counts=False)
            self.updates.finish()
            if "ratio" in values and not norms:
                metrics |= self._ratio_before_update(values["ratio"][: ends[update[-1][0]]])
            norms.append(self.updates.step())
            self.ema.update(self.parameters)
            trained += len({sample for _, batch in update for sample in batch.samples})
        metrics |= self._means({name: processes.all_reduce(value) for name, value in values.items()})
        metrics |= {"grad_norm": float(np.mean(norms)), "trained": float(trained)}
        metrics["loss"] = float(np.sum(processes.all_reduce(losses).tolist())) / len(norms)
        return {name: metrics[name] for name in METRICS if not np.isnan(metrics.get(name, np.nan))}

    def _ratio_before_update(self, ratios: torch.Tensor) -> dict[str, float]:
        """Validate the ratios of the first update's samples (N,), of which this process has its own, the others 0."""
        distance = (self.processes.all_reduce(ratios) - 1.0).abs()
        gap, share = float(distance.max()), float((distance > self.params.clip_range).double().mean())
        if gap > (bound := max_ratio_gap(self.params)):
            raise RuntimeError(
                f"|ratio - 1| before the first update is {gap:.3g}, more than {bound:g}, and {share:.0%} of samples "
                f"are outside clip_range={self.params.clip_range:g}: the training pass does not match the sampling; "
                f"{RATIO_REMEDY}, or raise policies.defaults.max_ratio_gap"
            )
        if self.processes.main and (warning := clipping_warning(share, self.params)):
            self.log(warning)
        return {"ratio_gap": gap, "first_clip_fraction": share}

    def _means(self, values: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """The metrics over all trained samples, from the values of each (N,)."""
        means = {name: float(of_samples.mean()) for name, of_samples in values.items() if name != "ratio"}
        if (ratios := values.get("ratio")) is not None:
            means |= {"ratio_mean": float(ratios.mean()), "ratio_std": float(ratios.std(unbiased=False))}
            means["clip_fraction"] = float(((ratios - 1.0).abs() > self.params.clip_range).double().mean())
        return means

    def tensors(self) -> dict[str, torch.Tensor]:
        """Weights, averaged weights, optimizer moments and the random state of each rank, for a checkpoint.

        Weights, averages and moments are shaped like their parameters, random states (bytes,).
        """
        state = torch.get_rng_state()
        states = torch.zeros((self.processes.world_size, len(state)), dtype=state.dtype)
        states[self.processes.rank] = state
        rng = {str(rank): row for rank, row in enumerate(self.processes.all_reduce(states))}
        groups = {"weights": self.parameters, "ema": self.ema.shadow, "optimizer": self.updates.moments(), "rng": rng}
        return pack({**groups, "objective": self.objective.tensors()})

    def restore(self, tensors: dict[str, torch.Tensor], optimizer_steps: int) -> None:
        """Load the tensors of :meth:`tensors`, shaped like them, bit for bit."""
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
