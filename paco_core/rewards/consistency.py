"""Consistency of a set: mean or minimum of P(Yes) of the reward model over unordered pairs of its panels."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

import numpy as np

from paco_core.data.records import prompt_text
from paco_core.reward_model.instructions import render_instruction
from paco_core.reward_model.yes_probability import PairQuery, PairScorer
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.needs import validate_panel_counts
from paco_core.rewards.panel_pairs import Pairs, select_panel_pairs

if TYPE_CHECKING:
    from paco_core.config.params import RewardTerm
    from paco_core.data.records.records import PromptRecord
    from paco_core.rewards.sources import Sources


class Consistency:
    """One query per unordered pair of panels (6 for a 2x2 grid) about the theme of the prompt.

    If a pair cannot be scored, the set is NaN, because a mean over the other pairs would depend on the failures. A
    limited number of pairs is sampled by prompt and ``batch.seed``, so all images of a group have the same pairs.

    Args:
        scorer: reward model.
        template: name of the instruction template.
        theme_from: the theme in the instruction: that of the record, or the opening of the prompt.
        pairs: the pairs of panels; see :func:`.panel_pairs.select_panel_pairs`.
        by: ``mean`` or ``worst`` (minimum) over the pairs.
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
        validate_panel_counts("consistency", batch.records)
        for position, (record, panels) in enumerate(zip(batch.records, batch.panels, strict=True)):
            text = render_instruction(
                self.template, theme=record.theme if self.theme_from == "theme" else opening_text(record)
            )
            key = f"{record.idx}|{batch.seed}"
            for first, second in select_panel_pairs(len(panels), record.grid[1], self.pairs, key):
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


def opening_text(record: PromptRecord) -> str:
    """The prompt up to its first panel, which the released PaCo-GRPO uses as the theme.

    Raises:
        DataError: if the panels of the prompt do not match its layout.
    """
    text = prompt_text.parse_prompt(record.prompt, record.layout).opening.removesuffix('"').rstrip()
    return text if text.endswith(".") else f"{text}."


def build(term: RewardTerm, sources: Sources) -> Consistency:
    """Build the reward of a term."""
    judge = sources.judge("consistency", term)
    return Consistency(judge, theme_from=term.theme_from, pairs=term.pairs, by=term.aggregate)
