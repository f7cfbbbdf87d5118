"""Learning from pictures that were ranked before: no rollout, no reward (losses dpo and sft)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from paco_core.config.params import PolicyRecipe, PolicyTraining
from paco_core.data.preferences import Preferences
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.epoch_prompts import prompts_of_epoch
from paco_core.grpo.experience import Bucket, Experience, MicroBatch
from paco_core.grpo.losses import OFFLINE, PairErrors
from paco_core.grpo.objectives import FORWARD_NOISE, Terms
from paco_core.grpo.rollout import Sampling
from paco_core.grpo.sizes import buckets, picture_size
from paco_core.policies.base import NoiseKey, Policy, Size
from paco_core.policies.encoded import Encoded

if TYPE_CHECKING:
    from paco_core.grpo.figures import Row

REFERENCE = "reference"  # name of the second adapter: the policy as it was before training


class OfflineObjective:
    """dpo, sft: latents of the best and of the worst picture of a prompt, noised alike at the trained steps."""

    keeps: frozenset[str] = frozenset()
    keeps_clean = True
    as_sampled = False
    learns_at_zero = True

    def __init__(self, policy: Policy, params: PolicyTraining) -> None:
        self.policy, self.params, self.loss = policy, params, OFFLINE[params.loss]
        self.pictures = 2 if self.loss.pairs else 1
        if self.loss.pairs:
            policy.copy_adapter(REFERENCE)  # made again by every start, so that no checkpoint holds it

    def steps(self, sampling: Sampling) -> list[int]:
        return list(sampling.train_steps or range(len(sampling.steps)))

    def behaviour(self) -> AbstractContextManager[object]:
        return nullcontext()

    def prepare(self, experience: Experience, batches: Iterable[MicroBatch]) -> None:
        pass

    def terms(self, experience: Experience, batch: MicroBatch) -> Terms:
        sampling = batch.bucket.sampling
        sigma = sampling.steps[batch.step].sigma
        assert batch.bucket.clean is not None
        given = batch.bucket.clean[batch.places]  # (N, 2, L, C): the best, the worst
        keys = [replace(experience.keys[sample], step=FORWARD_NOISE + batch.step) for sample in batch.samples]
        noise = self.policy.noise(sampling.size, keys).repeat(self.pictures, 1, 1)
        clean = torch.cat([given[:, place] for place in range(self.pictures)])
        noised, target = (1.0 - sigma) * clean + sigma * noise, noise - clean
        condition = experience.conditions(batch.samples * self.pictures)

        def errors() -> list[torch.Tensor]:
            """Of the best pictures, and of the worst, (N,) each."""
            predicted = self.policy.velocity(noised, sigma, condition, sampling.guidance, sampling.size)
            found = ((predicted - target) ** 2).flatten(1).mean(dim=1)
            return list(found.chunk(self.pictures))

        reference = []
        if self.loss.pairs:
            with torch.no_grad(), self.policy.using(REFERENCE):
                reference = errors()
        pair = PairErrors(*errors(), *reference)
        loss = self.loss.function(pair, self.params.dpo.beta)
        return Terms(loss, margin=pair.margin.detach() if self.loss.pairs else None)

    def after_epoch(self, finished: int) -> None:
        pass

    def tensors(self) -> dict[str, torch.Tensor]:
        return {}


@dataclass(frozen=True)
class OfflineEpochs:
    """Each epoch's pairs: one a prompt, encoded when it is their turn.

    Attributes:
        records: training prompts, each with a pair in ``preferences``.
        encoded: a row each.
    """

    policy: Policy
    recipe: PolicyRecipe
    records: Sequence[PromptRecord]
    encoded: Encoded
    preferences: Preferences

    def open(self, _store: Path, /) -> AbstractContextManager[object]:
        return nullcontext()

    def gather(self, epoch: int) -> tuple[Experience, Row, Row]:
        """The pairs of an epoch, as one sample each; no figures, and the seconds of encoding."""
        clock, recipe = time.monotonic(), self.recipe
        rows = prompts_of_epoch(len(self.records), recipe.prompts_per_epoch, epoch, recipe.seed)
        seed = (recipe.seed << 32) + epoch + 1
        keys = [NoiseKey(self.records[row].idx, 0, seed) for row in rows]
        sizes = [
            picture_size(self.records[row], recipe.train_size, recipe.record_size, self.policy.multiple) for row in rows
        ]
        found = [self._bucket(size, places, rows) for size, places in buckets(sizes).items()]
        return (
            Experience(self.encoded, rows, keys, np.ones(len(rows)), found),
            {},
            {"seconds/encode": time.monotonic() - clock},
        )

    def _bucket(self, size: Size, places: Sequence[int], rows: Sequence[int]) -> Bucket:
        recipe = self.recipe
        sampling = Sampling.for_policy(
            self.policy, size, recipe.sampling_steps, recipe.guidance, train_steps=recipe.train_steps or ()
        )
        pairs = [self.preferences.pictures(self.records[rows[place]].idx) for place in places]
        clean = self.policy.encode_pictures([picture for pair in pairs for picture in pair], size)
        return Bucket(sampling, np.array(places), {}, clean.reshape(len(pairs), 2, *clean.shape[1:]))
