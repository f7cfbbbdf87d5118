"""One epoch's pictures: rolled out in batches of one size, each handed to the scorers before the next is begun."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image as pil

from paco_core.config.params import PolicyRecipe
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.epoch_prompts import refuse_split_groups, refuse_uneven_batches
from paco_core.grpo.experience import Bucket
from paco_core.grpo.objectives import Objective
from paco_core.grpo.pages import EncodedPrompts, Part, paint_page, part_key, starts
from paco_core.grpo.rollout import NoisyStep, Sampling, rollout
from paco_core.grpo.scoring import Scores, Scoring
from paco_core.grpo.sizes import Canvas, buckets
from paco_core.policies.base import NoiseKey, Policy, Size
from paco_core.policies.encoded import Encoded
from paco_core.training.processes import Processes

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Batch:
    """Samples rolled out together: their page and their places in the epoch."""

    page: Canvas
    places: list[int]


@dataclass(frozen=True)
class Sampled:
    """What is learnt from: whole pictures, or each panel of stories, picture after picture.

    Attributes:
        encoded: what they were painted from.
        rows, keys: of each sample, as in :class:`Experience`.
        first: each picture's first sample, and the number of all, (pictures + 1,).
        scores: waits for those of the pictures.
    """

    encoded: Encoded
    rows: list[int]
    keys: list[NoiseKey]
    first: list[int]
    buckets: list[Bucket]
    scores: Callable[[], Scores]


class Sampler:
    """Rolls out the groups of an epoch, this process's share of the batches."""

    def __init__(
        self,
        policy: Policy,
        recipe: PolicyRecipe,
        records: Sequence[PromptRecord],
        prompts: EncodedPrompts,
        objective: Objective,
        scoring: Scoring,
        processes: Processes,
    ) -> None:
        self.policy, self.recipe, self.records = policy, recipe, records
        self.prompts, self.objective, self.scoring, self.processes = prompts, objective, scoring, processes
        refuse_split_groups(scoring.groupwise, recipe, processes.world)
        sizes = {self._page(record).part_size for record in records}
        self._sampling = {size: self._sampling_of(size) for size in sizes}

    def _page(self, record: PromptRecord) -> Canvas:
        recipe = self.recipe
        return Canvas.from_record(
            record, recipe.train_size, recipe.record_size, self.policy.multiple, self.prompts.predecessors
        )

    def _sampling_of(self, size: Size) -> Sampling:
        recipe = self.recipe
        return Sampling.for_policy(
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
        """How the samples of an epoch are cut, by page."""
        each = self.recipe.rollout_batch
        return [
            Batch(page, places[start : start + each])
            for page, places in buckets([self._page(self.records[row]) for row in rows]).items()
            for start in range(0, len(places), each)
        ]

    def sample(self, rows: Sequence[int], keys: Sequence[NoiseKey], noise_steps: Sequence[int]) -> Sampled:
        """Roll out all groups.

        Args:
            rows: row of the prompts for each picture, group after group.
            keys: names the noise of each picture.
            noise_steps: steps of this epoch that are noisy.

        Raises:
            DataError: when the processes cannot share the batches evenly, all of one page.
        """
        batches = self.batches(rows)
        if len({batch.page for batch in batches}) == 1:
            refuse_uneven_batches(len(batches), self.processes.world)
        samplings = {size: s.with_noise_at(noise_steps) for size, s in self._sampling.items()}
        done, scores = self._rolled_out(batches, rows, keys, samplings)
        first = starts([page.parts for _, page in sorted((p, b.page) for b in batches for p in b.places)])
        found = [
            self._bucket(page, part, samplings[page.part_size], first, batches, done)
            for page in dict.fromkeys(batch.page for batch in batches)
            for part in range(page.parts)
        ]
        conditions = [self._conditions(batch, rows, done.get(number)) for number, batch in enumerate(batches)]
        encoded, own_rows, named = self._samples(keys, first, batches, conditions)
        return Sampled(encoded, own_rows, named, first, found, scores)

    def _rolled_out(
        self,
        batches: Sequence[Batch],
        rows: Sequence[int],
        keys: Sequence[NoiseKey],
        samplings: Mapping[Size, Sampling],
    ) -> tuple[dict[int, list[Part]], Callable[[], Scores]]:
        """This process's batches by number, and what waits for the scores of all."""
        scoring, done = self.scoring.round(keys[0].seed), dict[int, list[Part]]()
        own = [number for number in range(len(batches)) if self.processes.mine(number)]
        for number in own:
            page, places = batches[number].page, batches[number].places
            took, named = [rows[place] for place in places], [keys[place] for place in places]
            images, parts = paint_page(self.policy, self.prompts, took, named, samplings[page.part_size], page)
            scoring.add([self.records[row] for row in took], images)
            done[number] = parts
        self._idle(batches, rows, keys, samplings)
        pending = scoring.pending()
        places = [place for number in own for place in batches[number].places]
        return done, lambda: pending.result().spread(places, len(rows), self.processes)

    def _idle(
        self,
        batches: Sequence[Batch],
        rows: Sequence[int],
        keys: Sequence[NoiseKey],
        samplings: Mapping[Size, Sampling],
    ) -> None:
        """Rollouts for nothing, which the processes with more of them need."""
        page = batches[0].page
        for _ in range(self.processes.idle(n for n, batch in enumerate(batches) for _ in range(batch.page.parts))):
            encoded, own = self.prompts.conditions(self.policy, rows[:1], 0, [[]], page.part_size)
            rollout(self.policy, encoded, own, keys[:1], samplings[page.part_size])

    def _conditions(
        self, batch: Batch, rows: Sequence[int], parts: Sequence[Part] | None
    ) -> list[tuple[Encoded, Sequence[int]]]:
        """What each part of a batch was painted from; where another process did it (None), from its pictures."""
        took, page = [rows[place] for place in batch.places], batch.page
        painted: list[list[Image]] = [[] for _ in took]
        if page.parts > 1 and self.processes.world > 1:
            painted = [self._shared(batch, place, parts) for place in range(len(took))]
        if parts is not None:
            return [(part.encoded, part.rows) for part in parts]
        return [self.prompts.conditions(self.policy, took, part, painted, page.part_size) for part in range(page.parts)]

    def _shared(self, batch: Batch, place: int, parts: Sequence[Part] | None) -> list[Image]:
        """The parts of a picture, from the process that painted it."""
        blank = np.zeros((*batch.page.part_size, 3), np.uint8)
        own = [blank if parts is None else np.asarray(parts[n].pictures[place]) for n in range(batch.page.parts)]
        return [pil.fromarray(part) for part in self.processes.sum_array(np.stack(own))]

    def _samples(
        self,
        keys: Sequence[NoiseKey],
        first: Sequence[int],
        batches: Sequence[Batch],
        conditions: Sequence[Sequence[tuple[Encoded, Sequence[int]]]],
    ) -> tuple[Encoded, list[int], list[NoiseKey]]:
        """What each sample was painted from: all that was encoded, the row of each, and the key of its noise."""
        known = list(self.prompts.encoded.rows)
        rows, named = [0] * first[-1], [keys[0]] * first[-1]
        for batch, found in zip(batches, conditions, strict=True):
            for part, (encoded, own) in enumerate(found):
                begin = 0 if encoded is self.prompts.encoded else len(known)
                known += [] if begin == 0 else encoded.rows
                for place, row in zip(batch.places, own, strict=True):
                    rows[first[place] + part] = begin + row
                    named[first[place] + part] = part_key(keys[place], part, batch.page)
        return Encoded(known, self.prompts.encoded.device), rows, named

    def _bucket(
        self,
        page: Canvas,
        part: int,
        sampling: Sampling,
        first: Sequence[int],
        batches: Sequence[Batch],
        done: dict[int, list[Part]],
    ) -> Bucket:
        """What all processes kept of a part of one page; micro-batches of an update may come from any of them."""
        numbers = [number for number, batch in enumerate(batches) if batch.page == page]
        found = {number: done[number][part].trajectory for number in numbers if number in done}
        lengths = {number: len(batches[number].places) for number in numbers}
        samples = np.array([first[place] + part for number in numbers for place in batches[number].places])
        alone = self.processes.world == 1
        latent = () if alone else self.policy.noise(sampling.size, [NoiseKey("shape", 0, 0)]).shape[1:]

        def joined(parts: list[torch.Tensor], shape: Sequence[int] = latent) -> torch.Tensor:
            return self._joined(dict(zip(found, parts, strict=True)), lengths, shape)

        kept: dict[int, NoisyStep] = {}
        for position, step in enumerate(filter(sampling.is_trained, sampling.noise_steps)):
            steps = [trajectory.kept[position] for trajectory in found.values()]
            kept[step] = NoisyStep(
                step,
                joined([each.before for each in steps]),
                joined([each.after for each in steps]),
                joined([each.log_prob for each in steps if each.log_prob is not None], ())
                if "log_prob" in sampling.keeps
                else None,
                joined([each.mean for each in steps if each.mean is not None]) if "mean" in sampling.keeps else None,
            )
        clean = joined([trajectory.latents for trajectory in found.values()]) if self.objective.keeps_clean else None
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
