"""The editing reward of edits with several references, and what a chat model is shown of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from PIL import Image

from paco_core.data.records.records import PromptRecord
from paco_core.reward_model.yes_probability import PairQuery, Score
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.editing import Editing
from paco_core.rewards.rubric import _order_of_pictures

EDITED = Image.new("RGB", (16, 16), "white")


class Judge:
    """Answers by the colour of the first picture."""

    def __init__(self, answers: dict[str, float]) -> None:
        self.answers = {Image.new("RGB", (1, 1), name).getpixel((0, 0)): value for name, value in answers.items()}
        self.asked: list[PairQuery] = []

    def score(self, queries: Sequence[PairQuery]) -> list[Score]:
        self.asked += queries
        values = [self.answers[q.first.getpixel((0, 0))] for q in queries]  # type: ignore[index]
        return [Score(v, "unclear" if math.isnan(v) else None) for v in values]


def batch(*rows: tuple[str, list[str]], size: tuple[int, int] = (16, 16)) -> RewardBatch:
    records = [
        PromptRecord(
            idx=f"p{n}", prompt=text, height=16, width=16, layout="1x1", theme="t", category="", task_name="",
            criteria={},
        )
        for n, (text, _) in enumerate(rows)
    ]  # fmt: skip
    references = [[Image.new("RGB", size, name) for name in names] for _, names in rows]
    return RewardBatch(records, [[EDITED]] * len(rows), [EDITED] * len(rows), references)


def test_the_least_answer_about_a_reference_stands_for_consistency() -> None:
    judge = Judge({"red": 0.8, "green": 0.2, "blue": 0.9})
    rows = batch(("Do it.", ["red"]), ("Use image 2.", ["red", "green", "blue"]), ("Use all.", ["red", "blue"]))
    found = Editing(judge)(rows)
    assert found == pytest.approx([0.8, math.sqrt(0.2 * 0.8), 0.8])
    assert len(judge.asked) == 2 + 3 + 3
    further = judge.asked[4]
    assert (
        "with reference image 2 of its instruction" in further.instruction and "'Use image 2.'" in further.instruction
    )
    assert Editing(judge)(rows.take([1])) == pytest.approx([math.sqrt(0.2 * 0.8)]), "batches do not matter"


def test_an_edit_without_an_answer_about_a_further_reference_has_no_reward() -> None:
    judge = Judge({"red": 0.8, "green": math.nan})
    reward = Editing(judge)
    found = reward(batch(("Use both.", ["red", "green"]), ("Do it.", ["red"])))
    assert np.isnan(found[0]) and found[1] == pytest.approx(0.8) and reward.causes == {"unclear": 1}


def test_a_further_reference_keeps_its_proportions() -> None:
    judge = Judge({"red": 0.5, "green": 0.5})
    Editing(judge)(batch(("Use both.", ["red", "green"]), size=(64, 16)))
    assert [q.first.size for q in judge.asked] == [(16, 16), (16, 16), (32, 8)]


def test_a_chat_model_is_told_which_picture_is_which() -> None:
    assert _order_of_pictures(0) == "" and "the second is the result" in _order_of_pictures(1)
    assert "next 2 are further references" in _order_of_pictures(3)
