"""Scoring of images by rewards while the next images are sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paco_core.config.measures import PANEL_DIVERSITY, REFERENCE_DISTANCE
from paco_core.data.image_measures import panel_diversity, reference_distance
from paco_core.data.records.panels import split_grid
from paco_core.data.records.records import PromptRecord
from paco_core.rewards.base import RewardBatch, RewardFunction

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.training.processes import Processes


Reference = Callable[
    [PromptRecord], Sequence["Image"]
]  # returns the reference images of a record; the first one is edited


@dataclass(frozen=True)
class Scores:
    """Rewards by name (N,), and a diversity measure (N,) that detects a collapse: 0 = only copies.

    ``measure`` is the name of the diversity measure: the difference between the panels of an image or, for edits, the
    distance from the reference.
    """

    rewards: dict[str, np.ndarray]
    diversity: np.ndarray
    measure: str = PANEL_DIVERSITY

    def scatter(self, places: Sequence[int], count: int, processes: Processes) -> Scores:
        """The scores of all processes, (count,): those of this process are at ``places``."""

        def full(values: np.ndarray) -> np.ndarray:
            scattered = np.zeros(count)
            scattered[list(places)] = values
            return processes.all_reduce_array(scattered)

        rewards = {name: full(values) for name, values in self.rewards.items()}
        return Scores(rewards, full(self.diversity), self.measure)


class ScoreBatch:
    """Images that are scored together. A pointwise reward gets each batch, a groupwise reward each complete group.

    A group is a sequence of images of one prompt, which may extend over several batches.
    """

    def __init__(self, scoring: Scoring, seed: int) -> None:
        self._scoring, self._seed = scoring, seed
        self._jobs: dict[str, list[Future[np.ndarray]]] = {name: [] for name in (*scoring.rewards, scoring.measure)}
        self._group: list[RewardBatch] = []

    def add(self, records: Sequence[PromptRecord], images: Sequence[Image]) -> None:
        """Start scoring images of ``records`` in the background."""
        panels = [split_grid(image, record.layout) for image, record in zip(images, records, strict=True)]
        reference = self._scoring.reference
        references = None if reference is None else [reference(record) for record in records]
        batch = RewardBatch(list(records), panels, list(images), references, self._seed)
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
        """Wait for the scores of all images, in their order."""
        self.flush()
        none = np.zeros(0)  # a process may have no image to score
        values = {name: np.concatenate([none, *(job.result() for job in jobs)]) for name, jobs in self._jobs.items()}
        diversity = values.pop(self._scoring.measure)
        return Scores(values, diversity, self._scoring.measure)


def groupwise(rewards: Mapping[str, RewardFunction]) -> list[str]:
    """Names of the rewards that need complete groups."""
    return [name for name, reward in rewards.items() if getattr(reward, "groupwise", False)]


class Scoring:
    """One worker thread per reward: rewards run in parallel to sampling and to each other, each in order.

    ``reference`` returns the reference images of a record. None if the policy does not edit.
    """

    def __init__(self, rewards: Mapping[str, RewardFunction], reference: Reference | None = None) -> None:
        self.rewards, self.reference = dict(rewards), reference
        self.measure = (
            PANEL_DIVERSITY if reference is None else REFERENCE_DISTANCE
        )  # detects a collapse; not the name of a term
        self._functions: dict[str, Callable[[RewardBatch], np.ndarray]] = {**rewards, self.measure: _diversities}
        self.groupwise = groupwise(rewards)
        self.pointwise = [name for name in self._functions if name not in self.groupwise]
        self._workers = {name: ThreadPoolExecutor(1, thread_name_prefix=f"score-{name}") for name in self._functions}

    def round(self, seed: int = 0) -> ScoreBatch:
        """Begin a batch of images.

        Args:
            seed: see :attr:`paco_core.rewards.base.RewardBatch.seed`.
        """
        return ScoreBatch(self, seed)

    def start(self, name: str, batch: RewardBatch) -> Future[np.ndarray]:
        """Submit a batch of N images to the worker of a reward. The result has shape (N,)."""
        return self._workers[name].submit(self._functions[name], batch)

    def failures(self) -> dict[str, int]:
        """Number of failures by "reward: cause"."""
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
    return np.array([reference_distance(*pair) for pair in zip(batch.whole, batch.originals, strict=True)])
