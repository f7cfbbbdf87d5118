"""Editing: how well an edited picture keeps what it should and does what it was asked, by the reward model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from paco_core.data.records.edit_records import asked_about
from paco_core.reward_model.instructions import render
from paco_core.reward_model.yes_probability import PairQuery, PairScorer
from paco_core.rewards.base import RewardBatch

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import RewardTerm
    from paco_core.rewards.sources import Sources

QUESTIONS = ("edit_consistency", "edit_following")


class Editing:
    """sqrt(P(edit_consistency) x P(edit_following)) of reference and edited picture (PaCo-RL, arXiv 2512.04784).

    Two questions a sample, and one more (``edit_reference``) about each further reference that the instruction names
    (:func:`asked_about`); the least answer about a reference stands for consistency, so that an edit that leaves one
    out is not paid for the others. The original comes first, both pictures at the size of the smaller one: the pair
    then shows nothing but the edit. An edit of 384 px that is enlarged to its original's size is soft beside a sharp
    original, and takes seven times the tokens. NaN where an answer is missing.
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
        """P(Yes) of each question, (N,) each; that about consistency is the least of all references."""
        batch.originals  # noqa: B018 raises where there are none
        asked = [
            _asked(record.prompt, references, edited)
            for record, references, edited in zip(batch.records, batch.references or (), batch.whole, strict=True)
        ]
        scores = self.scorer.score([query for queries in asked for query in queries])
        for score in scores:
            if score.cause is not None:
                self.causes[score.cause] = self.causes.get(score.cause, 0) + 1
        values, rows = iter(score.value for score in scores), []
        for queries in asked:
            consistency, following, *further = [next(values) for _ in queries]
            rows.append((np.min([consistency, *further]), following))
        return dict(zip(QUESTIONS, np.array(rows, dtype=np.float64).reshape(-1, 2).T, strict=True))


def _asked(instruction: str, references: Sequence[Image], edited: Image) -> list[PairQuery]:
    """The questions about one edit: :data:`QUESTIONS` about the original, then one about each other reference."""
    original = references[0]
    size = min(original.size, edited.size, key=math.prod)
    first, second = (image if image.size == size else image.resize(size) for image in (original, edited))
    found = [PairQuery(first, second, render(name, instruction=instruction)) for name in QUESTIONS]
    for place in asked_about(instruction, len(references))[1:]:
        text = render("edit_reference", instruction=instruction, number=place + 1)
        found.append(PairQuery(_no_larger(references[place], size), second, text))
    return found


def _no_larger(picture: Image, size: tuple[int, int]) -> Image:
    """A picture of at most as many pixels as one of ``size``, in its own proportions."""
    scale = math.sqrt(math.prod(size) / math.prod(picture.size))
    if scale >= 1:
        return picture
    width, height = (max(1, round(side * scale)) for side in picture.size)
    return picture.resize((width, height))


def build(term: RewardTerm, sources: Sources) -> Editing:
    """The reward of a term."""
    return Editing(sources.judge("editing", term))
