"""How an edit and its original are shown to the judge."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from PIL import Image

from paco_core.data.prompts.edit_prompts import drawn
from paco_core.reward_model.yes_probability import PairQuery, Score
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.editing import Editing


class Judge:
    """Remembers what it was shown."""

    def __init__(self) -> None:
        self.shown: list[PairQuery] = []

    def score(self, queries: Sequence[PairQuery]) -> list[Score]:
        self.shown += queries
        return [Score(0.25)] * len(queries)


@pytest.mark.parametrize(
    ("original", "edited", "shown"),
    [((1024, 768), (384, 384), (384, 384)), ((64, 64), (128, 128), (64, 64)), ((96, 64), (96, 64), (96, 64))],
)
def test_both_pictures_have_the_size_of_the_smaller_one(
    original: tuple[int, int], edited: tuple[int, int], shown: tuple[int, int]
) -> None:
    """A training at 384 px is judged at 384 px, as released: 196 tokens a picture, neither of them enlarged."""
    record = drawn(1, 32, 0).records[0]
    picture = Image.new("RGB", edited)
    judge = Judge()
    values = Editing(judge)(RewardBatch([record], [[picture]], [picture], [[Image.new("RGB", original)]]))
    assert values == [0.25] and len(judge.shown) == 2
    assert {image.size for query in judge.shown for image in query.pictures} == {shown}
