"""Characters: how well each panel keeps the characters that the user brings, by the reward model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paco_core.data.records.characters import load_images
from paco_core.data.records.records import characters_of_panels
from paco_core.io.pictures import limit_pixels
from paco_core.reward_model.instructions import render_instruction
from paco_core.reward_model.yes_probability import PairQuery, PairScorer
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.needs import require_characters

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import RewardTerm
    from paco_core.data.records.characters import Character
    from paco_core.data.records.records import PromptRecord
    from paco_core.rewards.sources import Sources


class Characters:
    """Mean over the panels of the lowest agreement of a panel with the characters.

    There is one query per panel, character and image of this character. If the text of a panel names a character, the
    agreement is the mean of P(Yes) over the images of this character. If the text does not name the character, the
    agreement is one minus this mean, because the panel should not show it. The reward is NaN if an answer is missing.

    The mean over images is not the maximum, because a copy of one image is a new picture in comparison with the other
    images. The maximum would not punish this copy.
    """

    name = "characters"

    def __init__(self, scorer: PairScorer) -> None:
        self.scorer = scorer
        self.causes: dict[str, int] = Counter()

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        """Rewards (N,).

        Raises:
            DataError: if a prompt has no characters, or an image of a character cannot be read.
        """
        return np.array([np.mean([np.min(values) for values in panels]) for panels in self.agreements(batch)])

    def agreements(self, batch: RewardBatch) -> list[list[list[float]]]:
        """For each image, panel and character of its prompt: the agreement, 0 to 1, NaN if an answer is missing."""
        require_characters(self.name, batch.records)
        rows = [_compare_all(record, panels) for record, panels in zip(batch.records, batch.panels, strict=True)]
        scores = self.scorer.score(
            [query for row in rows for panel in row for character in panel for query in character.queries]
        )
        for score in scores:
            if score.cause is not None:
                self.causes[score.cause] = self.causes.get(score.cause, 0) + 1
        values = iter(score.value for score in scores)
        return [
            [[character.agreement([next(values) for _ in character.queries]) for character in panel] for panel in row]
            for row in rows
        ]


@dataclass(frozen=True)
class CharacterQueries:
    """One panel and one character: a query per image of the character."""

    queries: Sequence[PairQuery]
    is_named: bool  # whether the text of the panel names the character

    def agreement(self, probabilities: Sequence[float]) -> float:
        """The mean P(Yes), or one minus it if the text does not name the character."""
        mean = mean_over_images(probabilities)
        return mean if self.is_named else 1.0 - mean


def _compare_all(record: PromptRecord, panels: Sequence[Image]) -> list[list[CharacterQueries]]:
    """For each panel: its queries about each character of the record."""
    return [
        [_compare(character, panel, is_named=character in expected) for character in record.characters]
        for expected, panel in zip(characters_of_panels(record), panels, strict=True)
    ]


def _compare(character: Character, panel: Image, *, is_named: bool) -> CharacterQueries:
    queries = [character_query(image, panel, character.name) for image in load_images(character)]
    return CharacterQueries(queries, is_named)


def character_query(image: Image, panel: Image, name: str) -> PairQuery:
    """The query whether a panel shows the character of an image, which has at most as many pixels as the panel."""
    return PairQuery(limit_pixels(image, panel.size), panel, render_instruction("character", name=name))


def mean_over_images(values: Sequence[float]) -> float:
    """The score of a panel and a character from the scores of all images of the character; NaN if one is missing."""
    return float(np.mean(values))


def build(term: RewardTerm, sources: Sources) -> Characters:
    """Build the reward of a term."""
    return Characters(sources.judge("characters", term))
