"""Consistency of a set by its own criteria: mean P(Yes) over its pairs of panels, then over a dimension's criteria.

As the public evaluation of T2IS-Bench asks it (chengyou-jia/T2IS, T2IS_Eval): each unordered pair, the earlier panel
first, and the probability of "Yes" against "No" at the first answer token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Literal

import numpy as np
from PIL import Image as pil

from paco_core.benchmarks.t2is_bench.means import Place, answers
from paco_core.benchmarks.t2is_bench.texts import DIMENSIONS, Questions
from paco_core.reward_model.instructions import render
from paco_core.reward_model.yes_probability import PairQuery, Query, QueryScorer
from paco_core.rewards.base import RewardBatch

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.data.records.records import PromptRecord

#: Pixels of a panel's sides in published questions: 512, which Qwen's preprocessing makes the next multiple of 28.
SIDE = 504
TEMPLATES = {"published": "t2is_bench_criteria", "rl": "criteria"}


class ConsistencyByCriteria:
    """Columns ``identity``, ``style`` and ``logic``; NaN where a set has no criterion of that dimension, or any of its
    questions failed.

    Args:
        wording: "published" asks the benchmark's question about panels of 504 px, "rl" the template ``criteria`` about
            panels as they are.
    """

    columns = tuple(name.lower() for name in DIMENSIONS)

    def __init__(self, scorer: QueryScorer, questions: Questions, wording: Literal["published", "rl"]) -> None:
        self.scorer, self.questions, self.wording = scorer, questions, wording
        self.causes: Counter[str] = Counter()

    def count(self, record: PromptRecord) -> int:
        """How many questions are asked about one set of a record."""
        rows, columns = record.grid
        pairs = rows * columns * (rows * columns - 1) // 2
        return pairs * sum(len(texts) for texts in self.questions.of(record).criteria.values())

    def measure(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        """The columns, (N,) each."""
        asked: list[tuple[Place, Query]] = []  # of set, dimension, criterion
        for row, (record, panels) in enumerate(zip(batch.records, batch.panels, strict=True)):
            shown = list(combinations(self._resized(panels), 2))
            criteria = self.questions.of(record).criteria
            for column, dimension in enumerate(DIMENSIONS):
                for number, text in enumerate(criteria.get(dimension, ())):
                    question = render(TEMPLATES[self.wording], criterion=text)
                    asked += [((row, column, number), PairQuery(first, second, question)) for first, second in shown]
        return answers(self.scorer, asked, len(batch), self.columns, self.causes)

    def _resized(self, panels: Sequence[Image]) -> Sequence[Image]:
        if self.wording == "rl":
            return panels
        return [panel.resize((SIDE, SIDE), pil.Resampling.BICUBIC) for panel in panels]
