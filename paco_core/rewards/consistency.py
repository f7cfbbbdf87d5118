"""Consistency of a set: mean P(Yes) of the reward model over the unordered pairs of its panels."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from paco_core.io.files import DataError
from paco_core.reward_model.instructions import render
from paco_core.reward_model.yes_probability import PairQuery, PairScorer
from paco_core.rewards.base import RewardBatch

if TYPE_CHECKING:
    from paco_core.config.params import RewardTerm
    from paco_core.rewards.sources import Sources


class Consistency:
    """Asks one question a distinct pair of panels (6 for a 2x2 grid) about the prompt's theme.

    A set with any unscorable pair is NaN: a mean over the rest would depend on which pairs failed.
    """

    name = "consistency"

    def __init__(self, scorer: PairScorer, template: str = "theme") -> None:
        self.scorer, self.template = scorer, template
        self.causes: dict[str, int] = Counter()

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        queries: list[PairQuery] = []
        owners: list[int] = []
        for position, (record, panels) in enumerate(zip(batch.records, batch.panels, strict=True)):
            if len(panels) < 2:
                raise DataError(f"prompt {record.idx}: layout {record.layout} has one panel, consistency needs two")
            text = render(self.template, theme=record.theme)
            for first, second in combinations(panels, 2):
                queries.append(PairQuery(first, second, text))
                owners.append(position)
        scores = self.scorer.score(queries)
        for score in scores:
            if score.cause is not None:
                self.causes[score.cause] = self.causes.get(score.cause, 0) + 1
        values = np.array([score.value for score in scores], dtype=np.float64)
        totals = np.bincount(owners, weights=values, minlength=len(batch))
        return totals / np.bincount(owners, minlength=len(batch))


def build(term: RewardTerm, sources: Sources) -> Consistency:
    """The reward of a term."""
    return Consistency(sources.judge("consistency", term))
