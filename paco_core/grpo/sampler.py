"""One epoch's pictures: rolled out in batches of one size, each handed to the scorers before the next is begun."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from paco_core.config.params import PolicyRecipe
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.epoch_prompts import refuse_split_groups, refuse_uneven_batches
from paco_core.grpo.experience import Bucket
from paco_core.grpo.objectives import Objective
from paco_core.grpo.rollout import NoisyStep, Sampling, Trajectory, rollout
from paco_core.grpo.scoring import Scores, Scoring
from paco_core.grpo.sizes import buckets, picture_size
from paco_core.policies.base import NoiseKey, Policy, Size
from paco_core.policies.encoded import Encoded
from paco_core.training.processes import Processes


@dataclass(frozen=True)
class Batch:
    """Samples rolled out together: their size and their places in the epoch."""

    size: Size
    places: list[int]


class Sampler:
    """Rolls out the groups of an epoch, this process's share of the batches."""

    def __init__(
        self,
        policy: Policy,
        recipe: PolicyRecipe,
        records: Sequence[PromptRecord],
        encoded: Encoded,
        objective: Objective,
        scoring: Scoring,
        processes: Processes,
    ) -> None:
        self.policy, self.recipe, self.records = policy, recipe, records
        self.encoded, self.objective, self.scoring, self.processes = encoded, objective, scoring, processes
        refuse_split_groups(scoring.groupwise, recipe, processes.world)
        sizes = {picture_size(r, recipe.train_size, recipe.record_size, policy.multiple) for r in records}
        self._sampling = {size: self._sampling_of(size) for size in sizes}

    def _sampling_of(self, size: Size) -> Sampling:
        recipe = self.recipe
        return Sampling.of(
            self.policy,
            size,
            recipe.sampling_steps,
            recipe.guidance,
            noise_steps=recipe.noise_steps,
            noise_level=recipe.noise_level,
            dynamics=recipe.dynamics,
            shared_noise=recipe.shared_noise,
            keeps=self.objective.keeps,
            train_steps=recipe.train_steps or (),
        )

    def batches(self, rows: Sequence[int]) -> list[Batch]:
        """How the samples of an epoch are cut, by picture size."""
        recipe = self.recipe
        sizes = [
            picture_size(self.records[row], recipe.train_size, recipe.record_size, self.policy.multiple) for row in rows
        ]
        each = self.recipe.rollout_batch
        return [
            Batch(size, places[start : start + each])
            for size, places in buckets(sizes).items()
            for start in range(0, len(places), each)
        ]

    def sample(
        self, rows: Sequence[int], keys: Sequence[NoiseKey], noise_steps: Sequence[int]
    ) -> tuple[list[Bucket], Callable[[], Scores]]:
        """Roll out all groups; the second result waits for their scores.

        Args:
            rows: row of the condition for each sample, group after group.
            keys: names the noise of each sample.
            noise_steps: steps of this epoch that are noisy.

        Raises:
            DataError: when the processes cannot share the batches evenly, all of one size.
        """
        batches = self.batches(rows)
        if len({batch.size for batch in batches}) == 1:
            refuse_uneven_batches(len(batches), self.processes.world)
        samplings = {size: s.with_noise_at(noise_steps) for size, s in self._sampling.items()}
        scoring, done = self.scoring.round(keys[0].seed), {}
        own = [number for number in range(len(batches)) if self.processes.mine(number)]
        for number in own:
            batch = batches[number]
            took = [rows[place] for place in batch.places]
            part = rollout(
                self.policy, self.encoded, took, [keys[place] for place in batch.places], samplings[batch.size]
            )
            images = self.policy.decode(part.latents, batch.size)
            scoring.add([self.records[row] for row in took], images)
            done[number] = part
        for _ in range(self.processes.idle(range(len(batches)))):
            rollout(self.policy, self.encoded, rows[:1], keys[:1], samplings[batches[0].size])
        pending = scoring.pending()
        places = [place for number in own for place in batches[number].places]
        found = [self._bucket(size, samplings[size], batches, done) for size in dict.fromkeys(b.size for b in batches)]
        return found, lambda: pending.result().spread(places, len(rows), self.processes)

    def _bucket(self, size: Size, sampling: Sampling, batches: Sequence[Batch], done: dict[int, Trajectory]) -> Bucket:
        """What all processes kept of one size; micro-batches of an update may come from any of them."""
        numbers = [number for number, batch in enumerate(batches) if batch.size == size]
        own = [number for number in numbers if number in done]
        lengths = {number: len(batches[number].places) for number in numbers}
        samples = np.array([place for number in numbers for place in batches[number].places])
        latent = self.policy.noise(size, [NoiseKey("shape", 0, 0)]).shape[1:] if self.processes.world > 1 else ()

        def joined(parts: list[torch.Tensor], shape: Sequence[int] = latent) -> torch.Tensor:
            return self._joined(dict(zip(own, parts, strict=True)), lengths, shape)

        kept: dict[int, NoisyStep] = {}
        for position, step in enumerate(filter(sampling.is_trained, sampling.noise_steps)):
            parts = [done[number].kept[position] for number in own]
            kept[step] = NoisyStep(
                step,
                joined([part.before for part in parts]),
                joined([part.after for part in parts]),
                joined([part.log_prob for part in parts if part.log_prob is not None], ())
                if "log_prob" in sampling.keeps
                else None,
                joined([part.mean for part in parts if part.mean is not None]) if "mean" in sampling.keeps else None,
            )
        clean = joined([done[number].latents for number in own]) if self.objective.keeps_clean else None
        return Bucket(sampling, samples, kept, clean)

    def _joined(self, parts: dict[int, torch.Tensor], lengths: dict[int, int], shape: Sequence[int]) -> torch.Tensor:
        """Rows of all batches in their order, with the rows of other processes in their places."""
        if self.processes.world == 1:
            return torch.cat([parts[number] for number in lengths])
        whole = torch.zeros((sum(lengths.values()), *shape), device=self.policy.device)
        end = 0
        for number, length in lengths.items():
            end += length
            if number in parts:
                whole[end - length : end] = parts[number]
        return self.processes.sum(whole)
