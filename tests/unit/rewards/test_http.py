"""The reward `http`: what a scorer is sent, what becomes of its answers, what is never asked twice."""

from __future__ import annotations

import base64
import io
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from paco_core.config.params import RewardTerm
from paco_core.data.records.records import PromptRecord
from paco_core.io import http_client
from paco_core.rewards import registry
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.sources import Sources
from tests.support.loopback import Loopback
from tests.support.scorer_server import Answer, ScorerServer


def record(idx: str) -> PromptRecord:
    words: dict[str, Any] = {"theme": "animals", "category": "Character", "task_name": "Multi-pose", "criteria": {}}
    return PromptRecord(
        idx=idx, prompt=f"Animals. [LEFT]: {idx} [RIGHT]: a dog", height=8, width=8, layout="1x2", **words
    )


def picture(level: int) -> Image.Image:
    return Image.new("RGB", (8, 8), (level, 0, 0))


def batch(*levels: int, references: list[list[Image.Image]] | None = None) -> RewardBatch:
    return RewardBatch([record(f"p{n}") for n in levels], [[]] * len(levels), [picture(n) for n in levels], references)


def decode_url(url: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,"))))


def redness(samples: list[dict[str, Any]], _number: int = 0) -> tuple[int, Any]:
    """A score of any size: ten times the red of the first pixel, below 0 as well."""
    return 200, {"scores": [10.0 * decode_url(s["picture"]).getpixel((0, 0))[0] - 25 for s in samples]}  # type: ignore[index]


def reward(server: ScorerServer, root: Path, **changes: Any) -> Any:
    return registry.build_reward(
        "theirs", RewardTerm(weight=1.0, reward="http", http=server.scorer(**changes)), Sources(root=root)
    )


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client.Patience, "pause", lambda *_: 0.001)


def test_one_request_a_batch_with_pictures_and_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THEIR_KEY", "secret")
    with ScorerServer(redness) as server:
        values = reward(server, tmp_path, api_key_env="THEIR_KEY")(batch(1, 7))
    assert values.tolist() == [-15.0, 45.0] and values.dtype == np.float64
    (request,) = server.requests
    assert server.paths == {"/v2/score?team=a"} and server.keys == {"Bearer secret"}
    assert request["model"] == "aesthetics 1"
    words = {"id": "p7", "prompt": "Animals. [LEFT]: p7 [RIGHT]: a dog", "layout": "1x2", "theme": "animals"}
    assert {k: v for k, v in request["samples"][1].items() if k != "picture"} == words
    assert np.array_equal(np.asarray(decode_url(request["samples"][1]["picture"])), np.asarray(picture(7)))


def test_an_edit_is_sent_with_its_reference(tmp_path: Path) -> None:
    def difference(samples: list[dict[str, Any]], _number: int) -> tuple[int, Any]:
        colours = [
            (decode_url(s["picture"]).getpixel((0, 0)), decode_url(s["reference"]).getpixel((0, 0))) for s in samples
        ]
        return 200, {"scores": [a[0] - b[0] for a, b in colours]}  # type: ignore[index]

    with ScorerServer(difference) as server:
        theirs = reward(server, tmp_path)
        assert theirs(batch(9, references=[[picture(2)]])).tolist() == [7.0]
        assert theirs(batch(9, references=[[picture(3)]])).tolist() == [6.0], "another reference is another sample"
        assert theirs(batch(9, references=[[picture(3), picture(4), picture(5)]])).tolist() == [6.0]
        assert theirs(batch(9, references=[[picture(3), picture(5), picture(4)]])).tolist() == [6.0]
    single, _, several, _ = (request["samples"][0] for request in server.requests)
    assert "further_references" not in single
    assert [decode_url(url).getpixel((0, 0))[0] for url in several["further_references"]] == [4, 5]  # type: ignore[index]


def test_what_was_scored_is_not_asked_again(tmp_path: Path) -> None:
    with ScorerServer(redness) as server:
        assert reward(server, tmp_path)(batch(3, 3, 4)).tolist() == [5.0, 5.0, 15.0]
        assert [s["id"] for s in server.requests[0]["samples"]] == ["p3", "p4"]
        assert reward(server, tmp_path)(batch(4, 5)).tolist() == [15.0, 25.0], "a new process, the same scores"
        assert [s["id"] for s in server.requests[1]["samples"]] == ["p5"]
        reward(server, tmp_path)(batch(4))
        assert len(server.requests) == 2, "nothing was left to ask"
        reward(server, tmp_path, model="aesthetics 2")(batch(4))
        assert len(server.requests) == 3, "another scorer has other scores"


def test_a_sample_without_score_keeps_its_cause_and_is_asked_again(tmp_path: Path) -> None:
    def picky(samples: list[dict[str, Any]], number: int) -> tuple[int, Any]:
        if number:
            return redness(samples)
        return 200, {"scores": [1.5, None, None, math.inf], "causes": [None, "no face found", None, None]}

    with ScorerServer(picky) as server:
        theirs = reward(server, tmp_path)
        assert theirs(batch(1, 2, 3, 4))[0] == 1.5
        values = theirs(batch(1, 2, 3, 4))
    assert theirs.causes == {"no face found": 1, "the scorer gave no score and no cause": 1, "the score is inf": 1}
    assert [s["id"] for s in server.requests[1]["samples"]] == ["p2", "p3", "p4"]
    assert values.tolist() == [1.5, -5.0, 5.0, 15.0]


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ({"scores": [1.0, 2.0], "causes": ["one"]}, "the answer has 2 scores and 1 causes for 2 samples"),
        ({"scores": ["1.0", True]}, "the answer has another form (scores.0"),
        ([1.0, 2.0], "the answer is not a JSON object"),
    ],
)
def test_an_answer_of_another_form_is_no_score(tmp_path: Path, answer: Any, cause: str) -> None:
    with ScorerServer(lambda _samples, _number: (200, answer)) as server:
        theirs = reward(server, tmp_path)
        assert np.isnan(theirs(batch(1, 2))).all()
    assert [(c[: len(cause)], count) for c, count in theirs.causes.items()] == [(cause, 2)]


def failing(status: int, times: int) -> Answer:
    return lambda samples, number: (
        (status, {"error": {"message": "warming up"}}) if number < times else redness(samples)
    )


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_was_not_served_is_tried_again(tmp_path: Path, status: int) -> None:
    with ScorerServer(failing(status, 2)) as server:
        assert reward(server, tmp_path, retries=2)(batch(3)).tolist() == [5.0]
    assert len(server.requests) == 3
    with ScorerServer(failing(status, 9)) as server:
        theirs = reward(server, tmp_path, retries=2)
        assert np.isnan(theirs(batch(4, 5))).all()
    assert len(server.requests) == 3 and theirs.causes == {f"HTTP {status}: warming up": 2}


def test_a_refusal_is_not_tried_again_and_an_address_without_a_server_is_a_cause(tmp_path: Path) -> None:
    with ScorerServer(failing(422, 1)) as server:
        theirs = reward(server, tmp_path)
        assert np.isnan(theirs(batch(3))).all()
    assert len(server.requests) == 1 and theirs.causes == {"HTTP 422: warming up": 1}
    theirs = reward(server, tmp_path, retries=1)
    assert np.isnan(theirs(batch(3))).all() and theirs.causes == {"connection refused": 1}


def test_tries_and_silence_end_with_the_budget_of_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(samples: list[dict[str, Any]], _number: int) -> tuple[int, Any]:
        time.sleep(1)
        return redness(samples)

    monkeypatch.setattr(http_client.Patience, "pause", lambda *_: 0.05)
    with ScorerServer(failing(503, 10**6)) as server:
        theirs = reward(server, tmp_path, retries=10**6, budget_s=0.3)
        assert np.isnan(theirs(batch(3))).all()
    assert 1 <= len(server.requests) <= 7 and sum(theirs.causes.values()) == 1
    with ScorerServer(slow) as server:
        theirs = reward(server, tmp_path, timeout_s=60, budget_s=0.25)
        assert np.isnan(theirs(batch(3))).all()
    (cause,) = theirs.causes
    assert cause.startswith("no answer within 0.2")


def test_the_scorer_of_the_page_answers(tmp_path: Path, repository: Path) -> None:
    page = (repository / "docs/how-to/choose-a-reward.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "scorer"}
    exec(page.partition("```python\n")[2].partition("```")[0], names)
    with Loopback(names["Scorer"]) as server:
        theirs = registry.build_reward(
            "brightness",
            RewardTerm(weight=1.0, reward="http", http={"url": f"{server.url}/", "model": "brightness 1"}),
            Sources(root=tmp_path),
        )
        values = theirs(batch(255, 0))
    assert values[0] == pytest.approx(76 / 255, abs=0.01) and np.isnan(values[1])
    assert theirs.causes == {"the image is black": 1}
