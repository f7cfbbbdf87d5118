"""Editing: how well an edited picture keeps what it should and does what it was asked, by the reward model."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from paco_core.reward_model.instructions import render
from paco_core.reward_model.yes_probability import PairQuery, PairScorer
from paco_core.rewards.base import RewardBatch

if TYPE_CHECKING:
    from paco_core.config.params import RewardTerm
    from paco_core.rewards.sources import Sources

QUESTIONS = ("edit_consistency", "edit_following")


class Editing:
    """sqrt(P(edit_consistency) x P(edit_following)) of reference and edited picture (PaCo-RL, arXiv 2512.04784).

    Two questions a sample, the original first, both pictures at the size of the smaller one: the pair then shows
    nothing but the edit. An edit of 384 px that is enlarged to its original's size is soft beside a sharp original,
    and takes seven times the tokens. NaN where either answer is missing.
    """

    name = "editing"

    def __init__(self, scorer: PairScorer) -> None:
        self.scorer = scorer
        self.causes: dict[str, int] = Counter()

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        """Rewards (N,).

        Raises:
            ValueError: when the batch holds no whole pictures, or no references.
        """
        found = self.answers(batch)
        return np.sqrt(np.prod([found[question] for question in QUESTIONS], axis=0))

    def answers(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        """P(Yes) of each question, (N,) each."""
        queries = []
        for record, reference, edited in zip(batch.records, batch.originals, batch.whole, strict=True):
            size = min(reference.size, edited.size, key=math.prod)
            first, second = (image if image.size == size else image.resize(size) for image in (reference, edited))
            queries += [PairQuery(first, second, render(name, instruction=record.prompt)) for name in QUESTIONS]
        scores = self.scorer.score(queries)
        for score in scores:
            if score.cause is not None:
                self.causes[score.cause] = self.causes.get(score.cause, 0) + 1
        values = np.array([score.value for score in scores], dtype=np.float64).reshape(-1, len(QUESTIONS))
        return dict(zip(QUESTIONS, values.T, strict=True))


def build(term: RewardTerm, sources: Sources) -> Editing:
    """The reward of a term."""
    return Editing(sources.judge("editing", term))
