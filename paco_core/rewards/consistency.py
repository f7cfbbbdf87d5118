"""Consistency of a set: P(Yes) of the reward model over unordered pairs of its panels, their mean or the least."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

import numpy as np

from paco_core.data.records import prompt_text
from paco_core.reward_model.instructions import render
from paco_core.reward_model.yes_probability import PairQuery, PairScorer
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.needs import refuse_single_panels
from paco_core.rewards.panel_pairs import Pairs, panel_pairs

if TYPE_CHECKING:
    from paco_core.config.params import RewardTerm
    from paco_core.data.records.records import PromptRecord
    from paco_core.rewards.sources import Sources


class Consistency:
    """Asks one question a distinct pair of panels (6 for a 2x2 grid) about the prompt's theme.

    A set with any unscorable pair is NaN: a mean over the rest would depend on which pairs failed. A number of pairs is
    drawn by the prompt and by what the batch draws by, so that they are the same for all pictures of a group.

    Args:
        pairs: of which panels; see :func:`.panel_pairs.panel_pairs`.
        by: ``mean`` over the pairs, or the ``worst`` of them.
    """

    name = "consistency"

    def __init__(
        self,
        scorer: PairScorer,
        template: str = "theme",
        theme_from: Literal["theme", "opening"] = "theme",
        pairs: Pairs = "all",
        by: Literal["mean", "worst"] = "mean",
    ) -> None:
        self.scorer, self.template, self.theme_from = scorer, template, theme_from
        self.pairs, self.by = pairs, by
        self.causes: dict[str, int] = Counter()

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        queries: list[PairQuery] = []
        owners: list[int] = []
        refuse_single_panels("consistency", batch.records)
        for position, (record, panels) in enumerate(zip(batch.records, batch.panels, strict=True)):
            text = render(self.template, theme=record.theme if self.theme_from == "theme" else opening(record))
            key = f"{record.idx}|{batch.draw}"
            for first, second in panel_pairs(len(panels), record.grid[1], self.pairs, key):
                queries.append(PairQuery(panels[first], panels[second], text))
                owners.append(position)
        scores = self.scorer.score(queries)
        for score in scores:
            if score.cause is not None:
                self.causes[score.cause] = self.causes.get(score.cause, 0) + 1
        values = np.array([score.value for score in scores], dtype=np.float64)
        if self.by == "worst":
            least = np.full(len(batch), np.inf)
            with np.errstate(invalid="ignore"):  # NaN stays NaN
                np.minimum.at(least, owners, values)
            return least
        totals = np.bincount(owners, weights=values, minlength=len(batch))
        return totals / np.bincount(owners, minlength=len(batch))


class ConsistencyMeasure(Consistency):
    """:class:`Consistency` for evaluations: NaN for a set of one panel, which is an error in a training."""

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        rows = [row for row, panels in enumerate(batch.panels) if len(panels) > 1]
        values = np.full(len(batch), np.nan)
        if rows:
            values[rows] = super().__call__(batch.take(rows))
        return values


def opening(record: PromptRecord) -> str:
    """The prompt up to its first panel, which the released PaCo-GRPO quotes as the theme.

    Raises:
        DataError: when the prompt marks other panels than its layout has.
    """
    text = prompt_text.parse(record.prompt, record.layout).opening.removesuffix('"').rstrip()
    return text if text.endswith(".") else f"{text}."


def build(term: RewardTerm, sources: Sources) -> Consistency:
    """The reward of a term."""
    judge = sources.judge("consistency", term)
    return Consistency(judge, theme_from=term.theme_from, pairs=term.pairs, by=term.aggregate)
