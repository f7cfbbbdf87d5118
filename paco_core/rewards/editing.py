"""Editing: consistency with the reference and instruction following of an edit, by the reward model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from paco_core.data.records.edit_records import evaluated_references
from paco_core.io.pictures import limit_pixels
from paco_core.reward_model.instructions import render_instruction
from paco_core.reward_model.yes_probability import PairQuery, PairScorer
from paco_core.rewards.base import RewardBatch

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import RewardTerm
    from paco_core.rewards.sources import Sources

QUESTIONS = ("edit_consistency", "edit_following")


class Editing:
    """sqrt(P(edit_consistency) x P(edit_following)) of reference and edited image (PaCo-RL, arXiv 2512.04784).

    There are two queries per sample, and one more (``edit_reference``) for each further reference that the
    instruction mentions (:func:`.edit_records.evaluated_references`). The minimum over references is the
    consistency, so an edit that ignores a reference gets no credit for the other references. The original is the
    first image. Both images are resized to the smaller size, so they differ by the edit only: an edit of 384 px
    that is enlarged to the size of its original is blurred and has seven times the tokens. The reward is NaN if an
    answer is missing.
    """

    name = "editing"

    def __init__(self, scorer: PairScorer) -> None:
        self.scorer = scorer
        self.causes: dict[str, int] = Counter()

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        """Rewards (N,).

        Raises:
            ValueError: if the batch contains no complete images or no references.
        """
        probabilities = self.answers(batch)
        return np.sqrt(np.prod([probabilities[question] for question in QUESTIONS], axis=0))

    def answers(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        """P(Yes) of each query, (N,) each. Consistency is the minimum over the references."""
        batch.originals  # noqa: B018 raises if there are none
        queries_by_row = [
            _build_queries(record.prompt, references, edited)
            for record, references, edited in zip(batch.records, batch.references or (), batch.whole, strict=True)
        ]
        scores = self.scorer.score([query for queries in queries_by_row for query in queries])
        for score in scores:
            if score.cause is not None:
                self.causes[score.cause] = self.causes.get(score.cause, 0) + 1
        values, rows = iter(score.value for score in scores), []
        for queries in queries_by_row:
            consistency, following, *further = [next(values) for _ in queries]
            rows.append((np.min([consistency, *further]), following))
        return dict(zip(QUESTIONS, np.array(rows, dtype=np.float64).reshape(-1, 2).T, strict=True))


def _build_queries(instruction: str, references: Sequence[Image], edited: Image) -> list[PairQuery]:
    """The queries for one edit: :data:`QUESTIONS` about the original, then one about each other reference."""
    original = references[0]
    size = min(original.size, edited.size, key=math.prod)
    first, second = (image if image.size == size else image.resize(size) for image in (original, edited))
    queries = [PairQuery(first, second, render_instruction(name, instruction=instruction)) for name in QUESTIONS]
    for place in evaluated_references(instruction, len(references))[1:]:
        text = render_instruction("edit_reference", instruction=instruction, number=place + 1)
        queries.append(PairQuery(limit_pixels(references[place], size), second, text))
    return queries


def build(term: RewardTerm, sources: Sources) -> Editing:
    """Build the reward of a term."""
    return Editing(sources.judge("editing", term))
