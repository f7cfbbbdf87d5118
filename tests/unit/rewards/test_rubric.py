"""The reward `rubric`: what the model is asked, what becomes of its marks, what is never asked twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paco_core.config.params import RewardTerm
from paco_core.data.llm.journal import SharedJournal
from paco_core.rewards import registry
from paco_core.rewards.rubric import JOURNAL
from paco_core.rewards.sources import Sources
from tests.support.chat_server import ChatServer, Raw, completion
from tests.unit.rewards.test_http import batch, picture

CRITERIA = {"identity": "one cat in all panels", "order": "the story is told in order"}


def marks(identity: int, order: int) -> Raw:
    settings = {"identity": identity, "order": order}
    return completion({"marks": [{"criterion": n, "reason": "seen", "mark": mark} for n, mark in settings.items()]})


def reward(server: ChatServer, root: Path, **criteria: str) -> Any:
    rubric = {"endpoint": server.params().model_dump(), "criteria": {**CRITERIA, **criteria}}
    return registry.build_reward("rubric", RewardTerm(weight=1.0, rubric=rubric), Sources(root=root))


def test_the_value_is_the_mean_mark_and_answers_are_kept(tmp_path: Path) -> None:
    with ChatServer(lambda *_: marks(8, 3)) as server:
        assert reward(server, tmp_path)(batch(1)).tolist() == [0.55]
        parts = server.bodies[0]["messages"][1]["content"]
        for words in (*CRITERIA.values(), "Layout (rows x columns): 1x2", "Theme: animals", "[LEFT]: p1"):
            assert words in parts[0]["text"]
        first, second = reward(server, tmp_path), reward(server, tmp_path)
        assert first(batch(1)).tolist() == second(batch(1)).tolist() == [0.55] and len(server.bodies) == 1
        first(batch(2)), second(batch(3))
        assert len(reward(server, tmp_path)(batch(1, 2, 3))) == 3 and len(server.bodies) == 3, "two writers, one file"
        reward(server, tmp_path, order="another wish")(batch(1))
        assert len(server.bodies) == 4
        reward(server, tmp_path)(batch(1, references=[[picture(9)]]))
        assert len(server.bodies[-1]["messages"][1]["content"]) == 3


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (marks(11, 3), "mark_out_of_range"),
        (completion({"marks": [{"criterion": "identity", "reason": "", "mark": 1}]}), "not_each_criterion_once"),
        (completion("nice picture"), "no_json"),
    ],
)
def test_without_a_usable_answer_there_is_a_cause(tmp_path: Path, answer: Raw, cause: str) -> None:
    with ChatServer(lambda *_: answer) as server:
        theirs = reward(server, tmp_path)
        assert np.isnan(theirs(batch(1, 2))).all() and theirs.causes == {cause: 2}


def test_a_half_written_answer_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL
    SharedJournal(path).append({"a": 1})
    path.write_bytes(path.read_bytes() + b'{"a": 2')
    reopened = SharedJournal(path)
    assert reopened.rows == [{"a": 1}]
    reopened.append({"a": 3})
    assert path.read_text() == '{"a": 1}\n{"a": 3}\n'
