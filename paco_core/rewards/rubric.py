"""Rubric reward: a vision-language model behind an OpenAI-compatible endpoint scores images by custom criteria."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
from pydantic import ConfigDict

from paco_core.data.llm.chat_protocol import Question, Rejection
from paco_core.data.llm.journal import SharedJournal
from paco_core.data.llm.openai_chat import Chat
from paco_core.io.validation import StrictModel
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.needs import require_section

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import RewardTerm, Rubric
    from paco_core.data.records.records import PromptRecord
    from paco_core.rewards.sources import Sources

JOURNAL = Path(".paco/rewards/rubric.jsonl")
BEST = 10
SYSTEM = f"""\
You mark a generated picture by the criteria that you are given, each on its own. First say in one sentence what you \
see that bears on the criterion, then give a whole number from 0 (not met at all) to {BEST} (fully met)."""


class Mark(StrictModel):
    """The observation and the mark for one criterion."""

    model_config = ConfigDict(extra="forbid")
    criterion: str
    reason: str
    mark: int


class Marks(StrictModel):
    """One mark per criterion."""

    model_config = ConfigDict(extra="forbid")
    marks: list[Mark]


class RubricReward:
    """Mean mark of an image over the criteria, 0 to 1. NaN, with its cause, if there is no valid answer.

    Answers with their reasons are saved in ``journal`` and reused.

    Raises:
        ChatError: if the environment variable of the key is empty, or in a call, if the endpoint rejects the key or the
            model, or does not respond.
    """

    name = "rubric"

    def __init__(self, rubric: Rubric, journal: SharedJournal) -> None:
        self._criteria, self._chat = rubric.criteria, Chat(rubric.endpoint, journal)
        self.causes: dict[str, int] = {}

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        references = batch.references or [()] * len(batch)
        replies = self._chat.query_here(zip(batch.records, batch.whole, references, strict=True), self._question)
        for reply in replies:
            if reply.answer is None:
                cause = reply.rejected[-1].cause
                self.causes[cause] = self.causes.get(cause, 0) + 1
        answers = [reply.answer for reply in replies]
        return np.array([math.nan if a is None else fmean(m.mark for m in a.marks) / BEST for a in answers])

    def _question(self, sample: tuple[PromptRecord, Image, Sequence[Image]]) -> Question[Marks]:
        record, picture, references = sample
        criteria = "\n".join(f"- {name}: {text}" for name, text in self._criteria.items())
        image_order = _image_order(len(references))
        text = (
            f"{image_order}Prompt: {record.prompt}\nLayout (rows x columns): {record.layout}\nTheme: {record.theme}\n\n"
            f"Criteria:\n{criteria}\n\nGive one mark for each criterion, by its name."
        )
        images = [*references, picture]
        return Question(record.idx, text, Marks, system=SYSTEM, images=images, validation_error=self._validation_error)

    def _validation_error(self, answer: Marks) -> Rejection | None:
        if sorted(mark.criterion for mark in answer.marks) != sorted(self._criteria):
            return Rejection("not_each_criterion_once", f"expected {', '.join(self._criteria)}, each once")
        outside = [mark.mark for mark in answer.marks if not 0 <= mark.mark <= BEST]
        return Rejection("mark_out_of_range", f"{outside[0]} is not 0 to {BEST}") if outside else None


def _image_order(references: int) -> str:
    """The order of the images in a query. Empty if it is not an edit."""
    if references < 2:
        return "The first picture was edited; the second is the result.\n" if references else ""
    return (
        f"The first picture was edited, the next {references - 1} are further references of the prompt, in its order; "
        "the last is the result.\n"
    )


def build(term: RewardTerm, sources: Sources) -> RubricReward:
    """The reward of a term."""
    rubric: Rubric = require_section("rubric", term)
    return RubricReward(rubric, SharedJournal(sources.root / JOURNAL))
