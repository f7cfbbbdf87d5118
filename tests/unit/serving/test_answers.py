"""No answer of a server, however wrong, and no entry of the cache becomes a score that the model did not give."""

from __future__ import annotations

import json
import logging
import math
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from paco_core.io.files import DataError
from paco_core.reward_model.yes_probability import Score, Unscorable, from_top_logprobs
from paco_core.serving import cache
from paco_core.serving.cache import ScoreCache
from paco_core.serving.client import RewardClient
from paco_core.serving.http_server import as_json
from paco_core.serving.protocol import ServingError
from tests.support.loopback import Quiet
from tests.support.serving_fakes import NAME, Scripted, Step, completion, queries, reply

GOOD = reply(200, completion(0.75))
NAN, INFINITE = float("nan"), float("inf")


def answer(*entries: Any) -> bytes:
    """A chat completion with these ``top_logprobs``."""
    return json.dumps({"model": NAME, "choices": [{"logprobs": {"content": [{"top_logprobs": [*entries]}]}}]}).encode()


def pair(yes: Any, no: Any) -> list[dict[str, Any]]:
    return [{"token": "Yes", "logprob": yes}, {"token": "No", "logprob": no}]


@pytest.mark.parametrize(
    "value",
    [NAN, INFINITE, -INFINITE, 0.2, 1e-300, True, False, None, "-0.1", [], {}, pytest.param(-(10**400), id="huge")],
)
@pytest.mark.parametrize("word", ["Yes", "No"])
def test_what_is_no_log_probability_is_no_score(word: str, value: Any) -> None:
    entries = pair(value, -0.5) if word == "Yes" else pair(-0.5, value)
    with pytest.raises(
        Unscorable, match=f"log-probability of '{word}' is (not a number|not a finite number)"
    ) as raised:
        from_top_logprobs(entries)
    assert str(value) not in str(raised.value).split("is", 1)[1], "causes are counted, so they name no number"


@pytest.mark.parametrize("entries", [None, {}, "Yes", 3, [None], ["Yes"], [["Yes", -1.0]]])
def test_what_is_no_list_of_log_probabilities_is_no_score(entries: Any) -> None:
    with pytest.raises(Unscorable, match="lists no log-probabilities"):
        from_top_logprobs(entries)


def test_a_missing_number_or_token_is_no_score() -> None:
    with pytest.raises(Unscorable, match="'Yes' is not a number"):
        from_top_logprobs([{"token": "Yes"}, {"token": "No", "logprob": -1.0}])
    for broken in ({"logprob": -0.1}, {"token": ["Yes"], "logprob": -0.1}, {}):
        with pytest.raises(Unscorable, match="a token that is not a string"):
            from_top_logprobs([broken, {"token": "No", "logprob": -1.0}])


def test_numbers_at_the_ends_are_scores() -> None:
    assert from_top_logprobs(pair(0.0, -9999.0)) == 1.0 and from_top_logprobs(pair(-9999, 0)) == 0.0
    assert from_top_logprobs([*pair(-1.0, -1.0), {"token": "Maybe", "logprob": None}]) == 0.5
    assert from_top_logprobs(pair(-700.0, -700.0)) == 0.5, "improbable, and a ratio of numbers that there are"


@pytest.mark.parametrize("value", [0, 0.0, -0.1, -0.6])
def test_probabilities_that_no_distribution_has_are_no_score(value: float) -> None:
    """Sums of 2, 1.81 and 1.10."""
    for entries in (pair(value, value), [*pair(value, -9999.0), {"token": "Maybe", "logprob": value}]):
        with pytest.raises(Unscorable, match="sum to more than 1"):
            from_top_logprobs(entries)


@pytest.mark.parametrize("value", [0.1, INFINITE, NAN])
def test_an_impossible_number_of_another_token_is_no_score(value: float) -> None:
    with pytest.raises(Unscorable, match="sum to more than 1"):
        from_top_logprobs([*pair(-1.0, -2.0), {"token": "Maybe", "logprob": value}])


@pytest.mark.parametrize("value", [-9999.0, -1e308, -(10**300), -800])
def test_words_without_a_probability_are_no_score(value: float) -> None:
    for entries in (pair(value, value), pair(value, -9999), pair(value, value)[:1], pair(value, value)[1:]):
        with pytest.raises(Unscorable, match="probabilities of Yes and No are both 0"):
            from_top_logprobs(entries)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_half_precision_rounds_is_a_score(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    logits = torch.randn(200, 20, generator=torch.Generator().manual_seed(0)) * 3
    for row in [*torch.log_softmax(logits, -1).to(getattr(torch, dtype)).tolist(), [math.log(0.5) + 0.002] * 2]:
        tokens = ["Yes", "No", *(f"t{n}" for n in range(len(row) - 2))]
        score = from_top_logprobs([{"token": t, "logprob": v} for t, v in zip(tokens, row, strict=True)])
        assert score == pytest.approx(1 / (1 + math.exp(row[1] - row[0])))


@pytest.mark.parametrize(
    ("value", "cause"), [(NAN, None), (0.5, "lost"), (1.5, None), (-0.1, None), (INFINITE, "lost")]
)
def test_a_score_is_in_its_range_or_has_a_cause(value: float, cause: str | None) -> None:
    with pytest.raises(ValueError, match="a score is in"):
        Score(value, cause)
    with pytest.raises(ValueError, match="a score is in"):
        Score(0.5, "lost")


@pytest.mark.slow
def test_questions_that_are_answered_with_nan_are_counted_and_never_kept(tmp_path: Path) -> None:
    """25 of 88: their mean was taken for lower, and their zeros spoiled later runs."""
    file = tmp_path / "scores.db"
    with Scripted([*[reply(200, answer(*pair(NAN, NAN)))] * 25, GOOD]) as server:
        with RewardClient(server.url, NAME, cache=file) as client:
            scores = client.score(queries(88))
            assert sum(score.failed for score in scores) == sum(client.counts.failures.values()) == 25
            assert [score.value for score in scores if not score.failed] == pytest.approx([0.75] * 63)
            assert list(client.counts.failures) == ["the log-probability of 'Yes' is not a finite number of at most 0"]
            again = client.score(queries(88))
            assert server.asked == 88 + 25 and client.counts.cached == 63
            assert [score.value for score in again] == pytest.approx([0.75] * 88)
        with closing(sqlite3.connect(file)) as known:
            assert known.execute("SELECT min(value) FROM scores").fetchone()[0] == pytest.approx(0.75)


DEEP = b'{"model": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (DEEP, "not a JSON object"),
        (b"[" * 100_000, "not a JSON object"),
        (json.dumps({"model": NAME, "choices": {"0": 1}}).encode(), "lacks log-probabilities"),
        (json.dumps({"model": NAME, "choices": [{"logprobs": None}]}).encode(), "lacks log-probabilities"),
        (answer(None), "lists no log-probabilities"),
        (answer(*pair("a", "b")), "is not a number"),
    ],
)
def test_malformed_answers_are_one_clear_cause(body: bytes, cause: str) -> None:
    with Scripted([reply(200, body)]) as server, RewardClient(server.url, NAME) as client:
        score = client.score(queries(1))[0]
    assert score.failed and cause in str(score.cause)


def models(body: bytes) -> type[Scripted]:
    """A server whose list of models is ``body``."""

    class Listing(Scripted):
        def __init__(self) -> None:
            super().__init__([GOOD])
            self.RequestHandlerClass = type("Handler", (Quiet,), {"do_GET": lambda handler: handler.reply(200, body)})

    return Listing


CARD = {"id": NAME}


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"data": null}',
        b'{"data": {"id": "x"}}',
        b'{"data": ["x"]}',
        b'{"data": [{}]}',
        json.dumps({"data": [{**CARD, "answer_tokens": {"Yes": 1}}]}).encode(),
        json.dumps({"data": [{**CARD, "answer_tokens": {"Yes": "x", "No": 2}}]}).encode(),
        json.dumps({"data": [{**CARD, "answer_tokens": [1, 2]}]}).encode(),
        DEEP,
    ],
)
def test_a_malformed_list_of_models_is_one_clear_line(body: bytes) -> None:
    with models(body)() as server, RewardClient(server.url, NAME) as client:
        with pytest.raises(ServingError, match="not that of an OpenAI-compatible|not a JSON object") as raised:
            client.score(queries(1))
        assert server.url in str(raised.value) and "\n" not in str(raised.value)


def dripping(handler: Quiet) -> None:
    """A whole answer, a byte at a time, each well within the time limit."""
    body = completion(0.75)
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    for byte in body:
        handler.wfile.write(bytes([byte]))
        handler.wfile.flush()
        if threading.Event().wait(0.05):
            return
    handler.close_connection = True


def dripping_head(handler: Quiet) -> None:
    """A whole answer after a head that comes a byte at a time."""
    body = completion(0.75)
    slow = "X-Slow: 1\r\n" * 20
    head = f"HTTP/1.1 200 OK\r\n{slow}Content-Length: {len(body)}\r\n\r\n"
    for byte in head.encode() + body:
        handler.wfile.write(bytes([byte]))
        handler.wfile.flush()
        threading.Event().wait(0.05)
    handler.close_connection = True


@pytest.mark.parametrize("step", [dripping, dripping_head])
def test_the_time_limit_is_one_for_the_whole_request(step: Step) -> None:
    """The answer is a good one, and takes 10 s: as long as its next byte came in time, it was waited for."""
    with Scripted([step]) as server:
        with RewardClient(server.url, NAME, timeout_s=0.5) as client:
            score = client.score(queries(1))[0]
        assert score.failed and score.cause == "no answer within 0.5 s"


def test_a_connection_is_used_again_after_its_first_request_had_its_time() -> None:
    with Scripted([GOOD]) as server, RewardClient(server.url, NAME, in_flight=1, timeout_s=0.4) as client:
        assert not client.score(queries(1))[0].failed
        threading.Event().wait(0.5)  # longer than the limit of the first
        assert not any(score.failed for score in client.score(queries(3)))
        assert client.retries == 0


def old_cache(file: Path, values: dict[bytes, float]) -> None:
    """A score cache as earlier versions wrote it."""
    with closing(sqlite3.connect(file)) as known, known:
        known.execute("CREATE TABLE scores (key BLOB PRIMARY KEY, value REAL NOT NULL) WITHOUT ROWID")
        known.execute("CREATE TABLE lookups (model TEXT PRIMARY KEY, hits INTEGER, misses INTEGER)")
        known.executemany("INSERT INTO scores VALUES (?, ?)", values.items())


def test_scores_of_an_older_version_are_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Some of its zeros were made up, and nothing tells which."""
    file = tmp_path / "scores.db"
    old_cache(file, {b"a": 0.0, b"b": 0.5})
    with caplog.at_level(logging.WARNING, "paco.serving"):
        assert ScoreCache(file).get([b"a", b"b"]) == {}
    assert f"{file}: 2 scores of an older version" in caplog.text
    ScoreCache(file).put({b"a": 0.25})
    assert ScoreCache(file).get([b"a", b"b"]) == {b"a": 0.25} and caplog.text.count("dropped") == 1


def test_several_processes_may_meet_an_old_cache(tmp_path: Path) -> None:
    file = tmp_path / "scores.db"
    old_cache(file, {b"old": 0.5})
    start, wrong = threading.Barrier(8), []

    def use(number: int) -> None:
        start.wait(30)
        try:
            ScoreCache(file).put({b"%d" % number: number / 8})
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    keys = [b"old", *(b"%d" % number for number in range(8))]
    assert ScoreCache(file).get(keys) == {b"%d" % number: number / 8 for number in range(8)}


def test_a_newer_cache_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "scores.db"
    with monkeypatch.context() as later:
        later.setattr(cache, "VERSION", cache.VERSION + 1)
        ScoreCache(file).put({b"a": 0.5})
        with pytest.MonkeyPatch.context() as now:
            now.setattr(cache, "VERSION", cache.VERSION - 1)
            with pytest.raises(DataError, match=r"scores\.db: a newer version"):
                ScoreCache(file).get([b"a"])
        assert ScoreCache(file).get([b"a"]) == {b"a": 0.5}


@pytest.mark.parametrize("value", [1.5, -0.1, INFINITE, "half", b"x"])
def test_what_lies_in_the_cache_is_looked_at(tmp_path: Path, value: Any) -> None:
    file = tmp_path / "scores.db"
    ScoreCache(file).put({b"good": 0.5})
    with closing(sqlite3.connect(file)) as known, known:
        with pytest.raises(sqlite3.IntegrityError):
            known.execute("INSERT INTO scores VALUES (?, ?)", (b"bad", value))
        known.execute("PRAGMA ignore_check_constraints = ON")
        known.execute("INSERT INTO scores VALUES (?, ?)", (b"bad", value))
    assert ScoreCache(file).get([b"good"]) == {b"good": 0.5}
    with pytest.raises(DataError, match=r"scores\.db: 1 of its entries are not scores"):
        ScoreCache(file).get([b"good", b"bad"])


@pytest.mark.parametrize("value", [NAN, INFINITE, -0.5, 1.01])
def test_no_score_is_kept_that_is_none(tmp_path: Path, value: float) -> None:
    known = ScoreCache(tmp_path / "scores.db")
    with pytest.raises(ValueError, match="1 of 2 scores to keep"):
        known.put({b"a": 0.5, b"b": value})
    assert known.get([b"a"]) == {}


def test_a_server_writes_no_number_that_json_does_not_know() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        as_json({"logprob": math.nan})
