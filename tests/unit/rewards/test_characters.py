"""The reward `characters`: its queries, and the number that it makes of their answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from PIL import Image, ImageColor

from paco_core.config.params import RewardSet, RewardTerm
from paco_core.data.records.records import PromptRecord
from paco_core.io.files import DataError
from paco_core.reward_model.yes_probability import PairQuery, Score
from paco_core.rewards import registry
from paco_core.rewards.base import RewardBatch, RewardFunction
from paco_core.rewards.sources import Sources
from tests.support.reward_batches import make_story

NAN = math.nan
NAMES = {ImageColor.getrgb(name): name for name in ("red", "green", "blue", "white", "black")}


class Judge:
    """Answers by the colours of the two images."""

    def __init__(self, answers: Mapping[tuple[str, str], float]) -> None:
        self.answers, self.queries = answers, list[PairQuery]()

    def score(self, queries: Sequence[PairQuery]) -> list[Score]:
        self.queries += queries
        pairs = [(colour(query.first), colour(query.second)) for query in queries]
        values = [self.answers.get(pair, 0.5) for pair in pairs]
        return [Score(value, "unclear" if math.isnan(value) else None) for value in values]


def colour(image: Image.Image) -> str:
    return NAMES[image.getpixel((0, 0))]  # type: ignore[index]


def batch(*rows: tuple[PromptRecord, list[str]], size: tuple[int, int] = (16, 16)) -> RewardBatch:
    return RewardBatch([r for r, _ in rows], [[Image.new("RGB", size, name) for name in names] for _, names in rows])


def reward(judge: Judge) -> RewardFunction:
    return registry.build_reward("characters", RewardTerm(weight=1.0), Sources({None: judge}))


def test_named_characters_must_be_there_and_the_others_must_not() -> None:
    record = make_story("Mia wakes.", "mia meets Fox.", Mia=["red"], Fox=["green"])
    judge = Judge({("red", "blue"): 0.9, ("green", "blue"): 0.3, ("red", "white"): 0.6, ("green", "white"): 0.8})
    assert reward(judge)(batch((record, ["blue", "white"]))) == pytest.approx([(min(0.9, 1 - 0.3) + 0.6) / 2])
    assert len(judge.queries) == 4
    assert [query.instruction.count('character "Mia"') for query in judge.queries] == [1, 0, 1, 0]
    assert [colour(query.first) for query in judge.queries] == ["red", "green"] * 2


def test_several_images_of_a_character_count_by_their_mean() -> None:
    record = make_story("Mia wakes.", "Fox.", Mia=["red", "blue", "black"], Fox=["green"])
    judge = Judge({("red", "white"): 0.9, ("blue", "white"): 0.6, ("black", "white"): 0.3, ("green", "white"): 0.1})
    values = reward(judge)(batch((record, ["white", "white"])))
    assert values == pytest.approx([(min(0.6, 0.9) + min(1 - 0.6, 0.1)) / 2]) and len(judge.queries) == 8


def test_a_missing_answer_makes_only_its_own_image_nan() -> None:
    record = make_story("Mia wakes.", "Fox sleeps.", Mia=["red"], Fox=["green"])
    judge = Judge({("red", "black"): NAN, ("green", "black"): 0.1})
    measured = reward(judge)
    values = measured(batch((record, ["black", "white"]), (record, ["white", "white"]), (record, ["white", "black"])))
    assert np.isnan(values).tolist() == [True, False, True] and values[1] == pytest.approx(0.5)
    assert measured.causes == {"unclear": 2}


def test_a_prompt_without_characters_is_an_error() -> None:
    record = make_story("Mia wakes.", "Fox sleeps.")
    with pytest.raises(DataError, match=r"prompt p: .*characters"):
        reward(Judge({}))(batch((record, ["white", "white"])))
    terms = {"characters": {"weight": 1.0}}
    rewards = RewardSet.model_validate({"terms": terms, "aggregator": "weighted_sum", "advantage_std": "group"})
    with pytest.raises(DataError, match="characters"):
        registry.validate_rewards(rewards, "panels", [record])
    registry.validate_rewards(rewards, "panels", [make_story("Mia.", "Mia runs.", Mia=["red"])])
    with pytest.raises(DataError, match="no panels"):
        registry.validate_rewards(rewards, "reference")
    assert registry.judges_of(rewards) == [None]


def test_a_large_image_of_a_character_is_not_larger_than_the_panel() -> None:
    judge = Judge({})
    reward(judge)(batch((make_story("Mia.", "Mia.", Mia=["red"], side=64), ["white", "white"]), size=(32, 16)))
    assert {query.first.size for query in judge.queries} == {(23, 23)}
    assert {query.second.size for query in judge.queries} == {(32, 16)}
