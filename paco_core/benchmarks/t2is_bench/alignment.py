"""Alignment of panels with what each should show: VQAScore, or the same question to any judge.

As the public evaluation of T2IS-Bench computes it: of each panel and aspect (entity, attribute, relation) the mean over
the aspect's texts, then the mean over panels. VQAScore (arXiv 2404.01291) is the probability of "Yes" to ``Does this
figure show "{text}"? Please answer yes or no.``, by clip-flant5-xxl in the package t2v-metrics.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

import numpy as np

from paco_core.benchmarks.t2is_bench.means import Place, answers
from paco_core.benchmarks.t2is_bench.texts import ASPECTS, Questions, refuse_without_texts
from paco_core.reward_model.instructions import render
from paco_core.reward_model.yes_probability import PictureQuery, Query, QueryScorer
from paco_core.rewards.base import RewardBatch

if TYPE_CHECKING:
    from paco_core.data.records.records import PromptRecord

TEMPLATE = "t2is_bench_shows"


class AlignmentWithTexts:
    """Columns ``entity``, ``attribute`` and ``relation``; NaN where a set has no text of that aspect, or any of its
    questions failed.

    Args:
        wording: "published" asks VQAScore's question, "text" sends a text as it is: to VQAScore itself, which asks that
            question, or where the texts are questions.
    """

    columns = tuple(name.lower() for name in ASPECTS)

    def __init__(self, scorer: QueryScorer, questions: Questions, wording: Literal["published", "text"]) -> None:
        self.scorer, self.questions, self.wording = scorer, questions, wording
        self.causes: Counter[str] = Counter()

    def count(self, record: PromptRecord) -> int:
        """How many questions are asked about one set of a record.

        Raises:
            DataError: when nobody says what its panels should show.
        """
        panels = refuse_without_texts(self.questions.of(record).panels)
        return sum(len(texts) for panel in panels for texts in panel.values())

    def measure(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        """The columns, (N,) each."""
        asked: list[tuple[Place, Query]] = []  # of set, aspect, panel
        for row, (record, panels) in enumerate(zip(batch.records, batch.panels, strict=True)):
            shows = self.questions.of(record).panels or ()
            for number, (panel, texts) in enumerate(zip(panels, shows, strict=True)):
                for column, aspect in enumerate(ASPECTS):
                    queries = [PictureQuery(panel, self._question(text)) for text in texts.get(aspect, ())]
                    asked += [((row, column, number), query) for query in queries]
        return answers(self.scorer, asked, len(batch), self.columns, self.causes)

    def _question(self, text: str) -> str:
        return render(TEMPLATE, criterion=text) if self.wording == "published" else text
