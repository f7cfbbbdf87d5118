"""Rewards of finished pictures, computed while the next ones are being sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paco_core.config.measures import PANEL_DIVERSITY, REFERENCE_DISTANCE
from paco_core.data.image_measures import panel_diversity, reference_distance
from paco_core.data.records.panels import cut
from paco_core.data.records.records import PromptRecord
from paco_core.rewards.base import RewardBatch, RewardFunction

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.training.processes import Processes


Reference = Callable[[PromptRecord], Sequence["Image"]]  # of a record: what its pictures are edits of, then the others


@dataclass(frozen=True)
class Scores:
    """Rewards by name (N,), and the sign of a collapse (N,), 0 = nothing but copies.

    ``measure`` says what the latter is: how different the panels of each picture are, or, of edits, how far each is
    from its reference.
    """

    rewards: dict[str, np.ndarray]
    diversity: np.ndarray
    measure: str = PANEL_DIVERSITY

    def scatter(self, places: Sequence[int], count: int, processes: Processes) -> Scores:
        """The scores of all processes: these ones at ``places`` of ``count``, the others' where they are from."""

        def full(values: np.ndarray) -> np.ndarray:
            whole = np.zeros(count)
            whole[list(places)] = values
            return processes.all_reduce_array(whole)

        rewards = {name: full(values) for name, values in self.rewards.items()}
        return Scores(rewards, full(self.diversity), self.measure)


class ScoreBatch:
    """Pictures scored together: a pointwise reward sees each batch at once, a groupwise one each whole group.

    A group is a run of pictures of one prompt, which may reach over several batches.
    """

    def __init__(self, scoring: Scoring, draw: int) -> None:
        self._scoring, self._draw = scoring, draw
        self._jobs: dict[str, list[Future[np.ndarray]]] = {name: [] for name in (*scoring.rewards, scoring.measure)}
        self._group: list[RewardBatch] = []

    def add(self, records: Sequence[PromptRecord], images: Sequence[Image]) -> None:
        """Start scoring pictures of ``records``; returns at once."""
        panels = [cut(image, record.layout) for image, record in zip(images, records, strict=True)]
        reference = self._scoring.reference
        references = None if reference is None else [reference(record) for record in records]
        batch = RewardBatch(list(records), panels, list(images), references, self._draw)
        for name in self._scoring.pointwise:
            self._submit(name, batch)
        if self._scoring.groupwise:
            for place, record in enumerate(records):
                if self._group and self._group[-1].records[0].idx != record.idx:
                    self.flush()
                self._group.append(batch.take([place]))

    def _submit(self, name: str, batch: RewardBatch) -> None:
        self._jobs[name].append(self._scoring.start(name, batch))

    def flush(self) -> None:
        """Start scoring the last group."""
        if self._group:
            for name in self._scoring.groupwise:
                self._submit(name, RewardBatch.join(self._group))
        self._group = []

    def result(self) -> Scores:
        """Wait for the scores of all pictures, in their order."""
        self.flush()
        none = np.zeros(0)  # a process may have no picture to score
        values = {name: np.concatenate([none, *(job.result() for job in jobs)]) for name, jobs in self._jobs.items()}
        diversity = values.pop(self._scoring.measure)
        return Scores(values, diversity, self._scoring.measure)


def groupwise(rewards: Mapping[str, RewardFunction]) -> list[str]:
    """Names of the rewards that look at whole groups."""
    return [name for name, reward in rewards.items() if getattr(reward, "groupwise", False)]


class Scoring:
    """One worker thread a reward: rewards run beside sampling and beside each other, each in order.

    ``reference`` gives the pictures that a record is about; None where its pictures are no edits.
    """

    def __init__(self, rewards: Mapping[str, RewardFunction], reference: Reference | None = None) -> None:
        self.rewards, self.reference = dict(rewards), reference
        self.measure = PANEL_DIVERSITY if reference is None else REFERENCE_DISTANCE  # of a collapse; no term's name
        self._functions: dict[str, Callable[[RewardBatch], np.ndarray]] = {**rewards, self.measure: _diversities}
        self.groupwise = groupwise(rewards)
        self.pointwise = [name for name in self._functions if name not in self.groupwise]
        self._workers = {name: ThreadPoolExecutor(1, thread_name_prefix=f"score-{name}") for name in self._functions}

    def round(self, draw: int = 0) -> ScoreBatch:
        """Begin to score pictures that belong together.

        Args:
            draw: what rewards draw by, :attr:`paco_core.rewards.base.RewardBatch.draw`.
        """
        return ScoreBatch(self, draw)

    def start(self, name: str, batch: RewardBatch) -> Future[np.ndarray]:
        """Hand a batch of N pictures to one reward's worker, which returns values (N,)."""
        return self._workers[name].submit(self._functions[name], batch)

    def failures(self) -> dict[str, int]:
        """Failures so far by "reward: cause"."""
        return {f"{n}: {cause}": k for n, r in self.rewards.items() for cause, k in r.causes.items()}

    def close(self) -> None:
        for worker in self._workers.values():
            worker.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Scoring:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _diversities(batch: RewardBatch) -> np.ndarray:
    if batch.references is None:
        return np.array([panel_diversity(panels) if len(panels) > 1 else np.nan for panels in batch.panels])
    return np.array([reference_distance(*both) for both in zip(batch.whole, batch.originals, strict=True)])
