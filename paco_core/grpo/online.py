"""An epoch of sampling: pictures of the policy itself, their scores, and what these say about each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from paco_core.grpo.advantages import advantages
from paco_core.grpo.epoch_prompts import noise_steps_of_epoch, prompts_of_epoch
from paco_core.grpo.experience import Experience
from paco_core.grpo.figures import Row, reward_figures
from paco_core.grpo.hack_alarm import AGREEMENT, agreement
from paco_core.grpo.objectives import Objective
from paco_core.grpo.sampler import Sampler
from paco_core.policies.base import NoiseKey
from paco_core.rewards.aggregation import aggregate, normalise
from paco_core.rewards.base import validate_failed_share

if TYPE_CHECKING:
    from paco_core.config.params import PolicyRecipe
    from paco_core.data.records.records import PromptRecord


def disagreement(trained: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """1 where the training judge puts a sample above its group's mean and the held-out one does not, else 0: (P, G).

    These are the samples that the policy would learn from and the other judge would not; where the latter has no score
    it is 1, too.

    Args:
        trained, held_out: scores (P, G), NaN where there is none.
    """
    above = [normalise(values) > 0 for values in (trained, held_out)]
    return (above[0] & ~above[1]).astype(np.float64)


class Epochs(Protocol):
    """What a training learns from, epoch after epoch; an epoch depends on its number and the weights alone."""

    def open(self, store: Path, /) -> AbstractContextManager[object]:
        """What is held while epochs are gathered; ``store`` is the folder of this training's checkpoints."""

    def gather(self, epoch: int) -> tuple[Experience, Row, Row]:
        """The experience of epoch 0, 1, ..., its figures, and apart from them its seconds."""


@dataclass(frozen=True)
class OnlineEpochs:
    """Sample, score, give advantages.

    Attributes:
        records: training prompts, which the sampler has encoded.
        max_failed_share: share of an epoch's samples without a score that ends the training.
    """

    recipe: PolicyRecipe
    records: Sequence[PromptRecord]
    sampler: Sampler
    objective: Objective
    max_failed_share: float

    def open(self, _store: Path, /) -> AbstractContextManager[object]:
        return self.sampler.scoring

    def gather(self, epoch: int) -> tuple[Experience, Row, Row]:
        """Groups of pictures with their advantages.

        Raises:
            DataError: when too many samples could not be scored.
        """
        clock = time.monotonic()
        recipe, rewards = self.recipe, self.recipe.rewards
        prompts = prompts_of_epoch(len(self.records), recipe.prompts_per_epoch, epoch, recipe.seed)
        noisy = noise_steps_of_epoch(recipe.noise_steps, recipe.num_noise_steps, epoch, recipe.seed)
        rows = [row for row in prompts for _ in range(recipe.group_size)]
        seed = (recipe.seed << 32) + epoch + 1
        keys = [NoiseKey(self.records[row].idx, i % recipe.group_size, seed) for i, row in enumerate(rows)]
        with self.objective.behaviour():
            found = self.sampler.sample(rows, keys, noisy)
        sampled = time.monotonic()
        scores = found.scores()
        scored = time.monotonic()
        shape = (len(prompts), recipe.group_size)
        combined = aggregate(
            {name: values.reshape(shape) for name, values in scores.rewards.items()},
            {name: term.weight for name, term in rewards.terms.items()},
            rewards.aggregator,
            rewards.tame_delta,
        )
        given = advantages(combined, rewards.advantage_std)
        causes = self.sampler.scoring.failures()
        validate_failed_share(given.failed, len(rows), self.max_failed_share, f"epoch {epoch + 1}", causes)
        flat = np.where(np.isnan(combined.values), np.nan, given.values).reshape(-1)
        figures = reward_figures(scores, combined, given)
        if recipe.num_noise_steps is not None:
            figures["first_noise_step"] = float(noisy[0])
        held = None
        if (meter := recipe.hack_meter) is not None:
            judges = [scores.rewards[name].reshape(shape) for name in (meter.trained, meter.held_out)]
            figures[AGREEMENT] = agreement(*judges)
            if recipe.kl.where == "disagreement":
                held = disagreement(*judges).reshape(-1)
                figures["disagreement"] = float(held.mean())
        seconds = {"seconds/sample": sampled - clock, "seconds/wait_for_scores": scored - sampled}
        panels = np.diff(found.first)  # of each picture: all learn from its advantage
        return (
            Experience(
                found.encoded,
                found.rows,
                found.keys,
                np.repeat(flat, panels),
                found.buckets,
                None if held is None else np.repeat(held, panels),
                found.first,
            ),
            figures,
            seconds,
        )
