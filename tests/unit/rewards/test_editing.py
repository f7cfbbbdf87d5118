"""The reward `editing`: what the judge sees of an edit and its references, and what becomes of its answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from PIL import Image, ImageColor

from paco_core.config.params import RewardTerm
from paco_core.reward_model.yes_probability import PairQuery, Score
from paco_core.rewards import registry
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.editing import Editing
from paco_core.rewards.sources import Sources
from tests.support.reward_batches import make_record

NAN = math.nan
NAMES = {ImageColor.getrgb(name): name for name in ("red", "green", "blue", "white")}


class Judge:
    """Answers by the colours of a pair and by whether the question is about the instruction."""

    def __init__(self, rule: Callable[[str, str, bool], float]) -> None:
        self.rule, self.queries = rule, list[PairQuery]()

    def score(self, queries: Sequence[PairQuery]) -> list[Score]:
        self.queries += queries
        colours = [[NAMES[image.getpixel((0, 0))] for image in query.pictures] for query in queries]  # type: ignore[index]
        following = ["accurately follow" in query.instruction for query in queries]
        values = [self.rule(first, second, it) for (first, second), it in zip(colours, following, strict=True)]
        return [Score(value, "unclear" if math.isnan(value) else None) for value in values]


def batch(
    *rows: tuple[str, list[str], str], size: tuple[int, int] = (16, 16), edited: tuple[int, int] = (16, 16)
) -> RewardBatch:
    """Of an instruction, the colours of its references and the edit's colour each."""
    records = [make_record("1x1", f"p{n}").model_copy(update={"prompt": text}) for n, (text, _, _) in enumerate(rows)]
    edits = [Image.new("RGB", edited, colour) for _, _, colour in rows]
    references = [[Image.new("RGB", size, name) for name in names] for _, names, _ in rows]
    return RewardBatch(records, [[edit] for edit in edits], edits, references)


def test_editing_is_the_root_of_both_answers_and_nan_without_one_of_them() -> None:
    answers = {"green": (0.81, 0.25), "blue": (NAN, 0.9), "white": (NAN, NAN)}
    judge = Judge(lambda _first, second, following: answers[second][following])
    rows = batch(*((f"Paint it {name}.", ["red"], name) for name in answers))
    reward = registry.build_reward("editing", RewardTerm(weight=1.0), Sources({None: judge}))
    values = reward(rows)
    assert values[0] == pytest.approx(0.45) and np.isnan(values[1:]).all() and reward.causes == {"unclear": 3}
    assert len(judge.queries) == 6 and all(q.first.getpixel((0, 0)) == (255, 0, 0) for q in judge.queries)
    assert all("Instruction: 'Paint it green.'" in query.instruction for query in judge.queries[:2])
    with pytest.raises(ValueError, match="reference"):
        reward(RewardBatch(rows.records, rows.panels, rows.whole))


def test_the_least_answer_about_a_reference_stands_for_consistency() -> None:
    answers = {"red": 0.8, "green": 0.2, "blue": 0.9, "white": NAN}
    judge = Judge(lambda first, _second, _following: answers[first])
    rows = batch(
        ("Do it.", ["red"], "white"), ("Use image 2.", ["red", "green", "blue"], "white"),
        ("Use all.", ["red", "blue"], "white"), ("Use both.", ["red", "white"], "white"),
    )  # fmt: skip
    reward = Editing(judge)
    assert reward(rows) == pytest.approx([0.8, math.sqrt(0.2 * 0.8), 0.8, NAN], nan_ok=True)
    assert len(judge.queries) == 2 + 3 + 3 + 3 and reward.causes == {"unclear": 1}
    further = judge.queries[4].instruction
    assert "with reference image 2 of its instruction" in further and "'Use image 2.'" in further
    assert Editing(judge)(rows.take([1])) == pytest.approx([math.sqrt(0.2 * 0.8)]), "batches do not matter"


@pytest.mark.parametrize(
    ("original", "edited", "size"),
    [((1024, 768), (384, 384), (384, 384)), ((64, 64), (128, 128), (64, 64)), ((96, 64), (96, 64), (96, 64))],
)
def test_both_pictures_have_the_size_of_the_smaller_one(
    original: tuple[int, int], edited: tuple[int, int], size: tuple[int, int]
) -> None:
    """A training at 384 px is judged at 384 px, as released: 196 tokens a picture, neither of them enlarged."""
    judge = Judge(lambda *_: 0.25)
    assert Editing(judge)(batch(("Do it.", ["red"], "blue"), size=original, edited=edited)) == [0.25]
    assert [image.size for query in judge.queries for image in query.pictures] == [size] * 4


def test_a_further_reference_keeps_its_proportions() -> None:
    judge = Judge(lambda *_: 0.5)
    Editing(judge)(batch(("Use both.", ["red", "green"], "white"), size=(64, 16)))
    assert [query.first.size for query in judge.queries] == [(16, 16), (16, 16), (32, 8)]
