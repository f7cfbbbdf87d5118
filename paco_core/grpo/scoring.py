"""Rewards of finished pictures, told while the next ones are being sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from paco_core.dataset.records import PromptRecord
from paco_core.dataset.subfigures import cut
from paco_core.rewards.base import RewardBatch, RewardFunction

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Scores:
    """Rewards by name (N,), and how different the panels of each picture are (N,), 0 = identical."""

    rewards: dict[str, np.ndarray]
    diversity: np.ndarray

    @classmethod
    def join(cls, parts: Sequence[Scores]) -> Scores:
        rewards = {name: np.concatenate([part.rewards[name] for part in parts]) for name in parts[0].rewards}
        return cls(rewards, np.concatenate([part.diversity for part in parts]))


def panel_diversity(panels: Sequence[Image]) -> float:
    """Root mean square pixel difference over the unordered pairs of panels, on the scale 0 to 1."""
    pixels = np.stack([np.asarray(panel.convert("RGB"), dtype=np.float64) for panel in panels]) / 255.0
    return float(np.mean([np.sqrt(np.mean((a - b) ** 2)) for a, b in combinations(pixels, 2)]))


class Pending:
    """Scores under way; :meth:`result` waits for them and passes on what went wrong."""

    def __init__(self, rewards: dict[str, Future[np.ndarray]], diversity: Future[np.ndarray]) -> None:
        self._rewards, self._diversity = rewards, diversity

    def result(self) -> Scores:
        return Scores({name: job.result() for name, job in self._rewards.items()}, self._diversity.result())


class Scoring:
    """One worker thread a reward: rewards run beside sampling and beside each other, each in order."""

    def __init__(self, rewards: Mapping[str, RewardFunction]) -> None:
        self.rewards = dict(rewards)
        self._workers = {name: ThreadPoolExecutor(1, thread_name_prefix=f"score-{name}") for name in rewards}
        self._diversity = ThreadPoolExecutor(1, thread_name_prefix="score-diversity")

    def submit(self, records: Sequence[PromptRecord], images: Sequence[Image]) -> Pending:
        """Start scoring pictures of ``records``; returns at once."""
        panels = [cut(image, record.layout) for image, record in zip(images, records, strict=True)]
        batch = RewardBatch(list(records), panels)
        jobs = {name: self._workers[name].submit(reward, batch) for name, reward in self.rewards.items()}
        return Pending(jobs, self._diversity.submit(_diversities, batch))

    def failures(self) -> dict[str, int]:
        """Failures so far by "reward: cause"."""
        return {f"{n}: {cause}": k for n, r in self.rewards.items() for cause, k in r.causes.items()}

    def close(self) -> None:
        for worker in (*self._workers.values(), self._diversity):
            worker.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Scoring:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _diversities(batch: RewardBatch) -> np.ndarray:
    return np.array([panel_diversity(panels) for panels in batch.panels])
