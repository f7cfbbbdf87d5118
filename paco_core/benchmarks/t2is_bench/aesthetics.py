"""How pleasant panels look to a published predictor, 0 to 1, mean over the panels of a set."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from paco_core.reward_model.yes_probability import PictureQuery, QueryScorer
from paco_core.rewards.base import RewardBatch

if TYPE_CHECKING:
    from paco_core.data.records.records import PromptRecord


class Aesthetics:
    """Column ``aesthetics``; NaN where a panel of the set could not be scored."""

    columns: tuple[str, ...] = ("aesthetics",)

    def __init__(self, scorer: QueryScorer) -> None:
        self.scorer = scorer
        self.causes: Counter[str] = Counter()

    def count(self, record: PromptRecord) -> int:
        """How many panels one set of a record has."""
        rows, columns = record.grid
        return rows * columns

    def measure(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        """The column, (N,)."""
        scores = self.scorer.score([PictureQuery(panel, "") for panels in batch.panels for panel in panels])
        self.causes.update(score.cause for score in scores if score.cause is not None)
        owners = np.repeat(np.arange(len(batch)), [len(panels) for panels in batch.panels])
        totals = np.bincount(owners, weights=[score.value for score in scores], minlength=len(batch))
        return {"aesthetics": totals / np.bincount(owners, minlength=len(batch))}
