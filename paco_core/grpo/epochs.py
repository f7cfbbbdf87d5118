"""Epochs: the samples of each epoch, from the policy's rollouts or from images that were ranked before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paco_core.config.params import PolicyRecipe
from paco_core.data.preferences import Preferences
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.objectives import Objective
from paco_core.grpo.prompt_split import noise_steps_of_epoch, prompts_of_epoch
from paco_core.grpo.rollout import Sampling
from paco_core.grpo.sampling import Bucket, Experience, Sampler
from paco_core.grpo.scoring import Scores
from paco_core.grpo.sizes import buckets, picture_size
from paco_core.policies.base import NoiseKey, Policy, Size
from paco_core.policies.encoded import Encoded


class Epochs(Protocol):
    """The samples that a training learns from; an epoch depends only on its number and the weights."""

    def gather(self, epoch: int) -> tuple[Experience, Callable[[], Scores] | None]:
        """The experience of epoch 0, 1, ..., and a function that waits for its scores; None if no score is needed."""


@dataclass(frozen=True)
class OnlineEpochs:
    """Groups of images that the policy samples; the rewards score them.

    Attributes:
        records: training prompts, which the sampler has encoded.
    """

    recipe: PolicyRecipe
    records: Sequence[PromptRecord]
    sampler: Sampler
    objective: Objective

    def gather(self, epoch: int) -> tuple[Experience, Callable[[], Scores] | None]:
        recipe = self.recipe
        prompts = prompts_of_epoch(len(self.records), recipe.prompts_per_epoch, epoch, recipe.seed)
        noise_steps = noise_steps_of_epoch(recipe.noise_steps, recipe.num_noise_steps, epoch, recipe.seed)
        rows = [row for row in prompts for _ in range(recipe.group_size)]
        seed = epoch_seed(recipe, epoch)
        keys = [NoiseKey(self.records[row].idx, i % recipe.group_size, seed) for i, row in enumerate(rows)]
        with self.objective.behaviour():
            return self.sampler.sample(rows, keys, noise_steps)


@dataclass(frozen=True)
class OfflineEpochs:
    """Pairs of ranked images, one per prompt, encoded in the epoch that trains on them.

    Attributes:
        records: training prompts, each with a pair in ``preferences``.
        encoded: one row per record.
    """

    policy: Policy
    recipe: PolicyRecipe
    records: Sequence[PromptRecord]
    encoded: Encoded
    preferences: Preferences

    def gather(self, epoch: int) -> tuple[Experience, Callable[[], Scores] | None]:
        recipe = self.recipe
        rows = prompts_of_epoch(len(self.records), recipe.prompts_per_epoch, epoch, recipe.seed)
        keys = [NoiseKey(self.records[row].idx, 0, epoch_seed(recipe, epoch)) for row in rows]
        sizes = [
            picture_size(self.records[row], recipe.train_size, recipe.record_size, self.policy.multiple) for row in rows
        ]
        of_sizes = [self._bucket(size, places, rows) for size, places in buckets(sizes).items()]
        return Experience(self.encoded, rows, keys, np.ones(len(rows)), of_sizes), None

    def _bucket(self, size: Size, places: Sequence[int], rows: Sequence[int]) -> Bucket:
        recipe = self.recipe
        sampling = Sampling.for_policy(
            self.policy, size, recipe.sampling_steps, recipe.guidance, train_steps=recipe.train_steps or ()
        )
        pairs = [self.preferences.pictures(self.records[rows[place]].idx) for place in places]
        clean = self.policy.encode_images([image for pair in pairs for image in pair], size)
        return Bucket(sampling, np.array(places), {}, clean.reshape(len(pairs), 2, *clean.shape[1:]))


def epoch_seed(recipe: PolicyRecipe, epoch: int) -> int:
    """The seed of an epoch's noise."""
    return (recipe.seed << 32) + epoch + 1
