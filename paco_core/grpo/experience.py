"""What an epoch's sampling leaves for its updates, and how that is cut into micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from paco_core.grpo.rollout import NoisyStep, Sampling, alike
from paco_core.policies.base import NoiseKey
from paco_core.policies.encoded import Condition, Encoded

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Bucket:
    """Samples of one picture size.

    ``samples``: their places in the epoch, ascending, (B,); ``kept``: one a trained noise step, B rows each;
    ``clean``: latents (B, L, C) where the loss needs them.
    """

    sampling: Sampling
    samples: np.ndarray
    kept: dict[int, NoisyStep]
    clean: torch.Tensor | None = None


@dataclass(frozen=True)
class Experience:
    """One epoch's samples, group after group: prompt row, noise key and advantage of each (N,).

    The advantage is NaN where a sample could not be scored: no loss learns from it. ``held``: 1 where the KL counts and
    0 where it does not (N,); None = it counts everywhere. ``first``: where a picture has several samples, the panels of
    a story, each picture's first one and the number of all (pictures + 1,); None = one a picture.
    """

    encoded: Encoded
    rows: Sequence[int]
    keys: Sequence[NoiseKey]
    advantages: np.ndarray
    buckets: Sequence[Bucket]
    held: np.ndarray | None = None
    first: Sequence[int] | None = None

    def conditions(self, samples: Sequence[int]) -> Condition:
        return self.encoded.take([self.rows[sample] for sample in samples])

    def spans(self, updates: int) -> list[range]:
        """The samples of each update, which takes its own share of the groups."""
        first = range(len(self.rows) + 1) if self.first is None else self.first
        each = (len(first) - 1) // updates
        return [range(first[number * each], first[(number + 1) * each]) for number in range(updates)]


@dataclass(frozen=True)
class MicroBatch:
    """Samples of one size passed forward and backward together at one step; equal ones share a pass."""

    bucket: Bucket
    step: int
    same: list[list[int]]  # rows of the bucket's tensors, those of equal samples together

    @property
    def places(self) -> list[int]:
        """Rows of the bucket's tensors."""
        return [place for places in self.same for place in places]

    @property
    def samples(self) -> list[int]:
        """Their places in the epoch."""
        return [int(sample) for sample in self.bucket.samples[self.places]]


class Learns(Protocol):
    """What a loss says of the samples that it learns from."""

    as_sampled: bool  # whether a trained pass begins where the rollout's did
    learns_at_zero: bool  # whether a sample of advantage 0 has a gradient


def micro_batches(
    experience: Experience, span: range, steps: Sequence[int], size: int, objective: Learns
) -> Iterator[MicroBatch]:
    """The samples of ``span`` that have a gradient, at every trained step; equal ones need one pass between them.

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
            same = [[place] for place in active]
            if objective.as_sampled and bucket.sampling.is_shared(step):
                samples = [int(bucket.samples[place]) for place in active]
                starts = [bucket.sampling.start(experience.keys[sample]) for sample in samples]
                groups = alike([experience.rows[sample] for sample in samples], starts)
                same = [[active[number] for number in group] for group in groups]
            for start in range(0, len(same), size):
                yield MicroBatch(bucket, step, same[start : start + size])
