"""A vision language model as judge: both orders, what it may not answer, and an endpoint that ends."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from paco_core.config.params import AnnotationsParams
from paco_core.data.annotation.judge import count_judge_queries
from paco_core.data.annotation.sources import collect_votes, workload
from paco_core.data.annotation.votes import RankingTask, Votes
from paco_core.data.records.panels import PanelStore
from paco_core.io.files import DataError
from tests.support.annotation_world import make_world
from tests.support.chat_server import ChatServer, Raw, completion


def colours(body: dict[str, Any]) -> list[tuple[int, int, int]]:
    """The colour of each picture in a request; panels of the world are of one colour each."""
    parts = next(m["content"] for m in body["messages"] if m["role"] == "user")
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return [Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))).getpixel((0, 0)) for url in urls]  # type: ignore[misc]


def similarity(first: tuple[int, int, int], second: tuple[int, int, int]) -> int:
    """The true score: panels of one position have the same red."""
    return 10 - abs(first[0] - second[0]) // 60 * 3


def run(root: Path, server: ChatServer, judge: str, **changes: Any) -> Votes:
    table = pd.read_parquet(root / "data/rankings/instances.parquet")
    params = AnnotationsParams(source="judge", judge=judge, endpoint=server.params(**changes))  # type: ignore[arg-type]
    return collect_votes(RankingTask(table, PanelStore.below(root / "data/grids"), params, root))


def truth(root: Path) -> dict[str, list[float]]:
    """Instance -> the true score of each candidate: by panel position alone."""
    table = pd.read_parquet(root / "data/rankings/instances.parquet")
    return {
        str(row["instance_id"]): [
            (10 - 3 * abs(int(row["reference"][-1]) - int(ref[-1]))) / 10 for ref in row["candidates"]
        ]
        for row in table.to_dict("records")
    }


@pytest.mark.slow
def test_pairs_are_scored_in_both_orders_and_asked_once(tmp_path: Path) -> None:
    table = make_world(tmp_path, prompts=1, seeds=3)  # 24 instances

    def answer(body: dict[str, Any], _n: int) -> Raw:
        first, second = colours(body)
        # A judge that likes the second picture better: by the same amount in both orders, which cancels out.
        bias = 1 if first[1] < second[1] else -1
        return completion({"score": min(10, max(0, similarity(first, second) + bias))})

    with ChatServer(answer) as server:
        first_run = run(tmp_path, server, "pairwise")
        num_requests = len(server.bodies)
        second_run = run(tmp_path, server, "pairwise")
    assert num_requests == count_judge_queries(table, "pairwise") == 96 == workload(table, AnnotationsParams(
        source="judge", endpoint=server.params()))[0]  # fmt: skip
    assert len(server.bodies) == num_requests and second_run.rankings == first_run.rankings, "the journal remembers"
    assert second_run.counts["remembered_answers"] == 96 and second_run.counts["requests"] == 0
    expected = truth(tmp_path)
    assert len(first_run.rankings) == 24 and first_run.counts["unscored_instances"] == 0
    for vote in first_run.rankings:
        best = max(range(4), key=lambda n: expected[vote.instance_id][n])
        assert vote.ranking[0] == best and vote.annotator == "writer"
        for n in (n for n in range(4) if expected[vote.instance_id][n] < 1):
            assert vote.scores[n] == pytest.approx(expected[vote.instance_id][n])
        assert vote.tied == (len(set(vote.scores)) < 4)
    assert 0 < first_run.counts["order_gap"] <= 0.2


def test_a_list_is_judged_in_two_orders(tmp_path: Path) -> None:
    table = make_world(tmp_path, prompts=1, seeds=2)  # 8 instances

    def answer(body: dict[str, Any], _n: int) -> Raw:
        reference, *candidates = colours(body)
        numbers = sorted(range(4), key=lambda n: -similarity(reference, candidates[n]))
        return completion({"ranking": [n + 1 for n in numbers]})

    with ChatServer(answer) as server:
        result = run(tmp_path, server, "listwise")
        assert len(server.bodies) == 16 == count_judge_queries(table, "listwise")
    expected = truth(tmp_path)
    assert len(result.rankings) == 8
    for vote in result.rankings:
        scores = [expected[vote.instance_id][n] for n in vote.ranking]
        assert scores == sorted(scores, reverse=True)
        assert vote.tied == (len(set(scores)) < 4), "candidates of equal merit fall as they stand, so both orders tie"


def test_a_judge_that_only_follows_the_order_ranks_nothing(tmp_path: Path) -> None:
    make_world(tmp_path, prompts=1, seeds=2)
    with ChatServer(lambda *_: completion({"ranking": [1, 2, 3, 4]})) as server, pytest.raises(DataError):
        run(tmp_path, server, "listwise")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("judge", "bad", "cause"),
    [("pairwise", {"score": 11}, "score_out_of_range"), ("listwise", {"ranking": [1, 1, 2, 3]}, "no_ranking")],
)
def test_a_bad_answer_is_asked_again_and_counted(tmp_path: Path, judge: str, bad: Any, cause: str) -> None:
    make_world(tmp_path, prompts=1, seeds=2)
    good = {"score": 5} if judge == "pairwise" else {"ranking": [2, 1, 3, 4]}
    stubborn: set[str] = set()

    def answer(body: dict[str, Any], _n: int) -> Raw:
        """Wrong at first everywhere, and for ever on the question that came first."""
        pictures = json.dumps(body["messages"][1])
        if not stubborn:
            stubborn.add(pictures)
        return completion(good if len(body["messages"]) > 2 and pictures not in stubborn else bad)

    with ChatServer(answer) as server:
        result = run(tmp_path, server, judge, in_flight=1)
    affected = 8 - len(result.rankings)
    assert result.counts["unscored_instances"] == affected and 1 <= affected <= 2
    assert result.counts[f"rejected.{cause}"] == result.counts["requests"] // 2 + 1
