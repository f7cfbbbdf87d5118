"""The client asks each question once, retries only what may help, and never makes up a score."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

from paco_core.io.http_client import MAX_PAUSE_S, Patience
from paco_core.reward_model.yes_probability import PairQuery, Score, in_both_orders
from paco_core.serving.client import RewardClient
from paco_core.serving.protocol import ServingError
from tests.support.serving_fakes import (
    NAME,
    FakeModel,
    Scripted,
    completion,
    half,
    hang_up,
    panel,
    queries,
    reply,
    served,
    silence,
    true_score,
)

QUICK = Patience(retries=3, backoff_s=0.001)
GOOD = reply(200, completion(0.75))


def test_equal_questions_are_asked_once_and_equal_panels_encoded_once() -> None:
    model = FakeModel()
    panels = [panel(n) for n in range(4)]
    copies = [image.copy() for image in panels]
    pairs = [(a, b) for a in range(4) for b in range(a + 1, 4)]
    asked = [PairQuery(panels[a], panels[b], "Same?") for a, b in pairs]
    again = [PairQuery(copies[a], copies[b], "Same?") for a, b in pairs]
    with served(model) as (url, state), RewardClient(url, NAME) as client:
        scores = client.score(asked + again)
    assert [s.value for s in scores] == pytest.approx([true_score(q) for q in asked] * 2)
    assert len(model.asks) == client.counts.requests == 6
    assert client.counts.encoded == state.pictures.decoded == 4


def test_another_prompt_or_another_order_is_another_question() -> None:
    a, b = panel(1), panel(2)
    model = FakeModel()
    with served(model) as (url, _), RewardClient(url, NAME) as client:
        client.score([PairQuery(a, b, "One?"), PairQuery(a, b, "Another?"), PairQuery(b, a, "One?")])
    assert len(model.asks) == 3


def test_the_server_sees_the_pixels_that_were_sent() -> None:
    model = FakeModel()
    noise = Image.effect_noise((31, 17), 80).convert("RGB")
    with served(model) as (url, _), RewardClient(url, NAME) as client:
        client.score([PairQuery(noise, panel(3), "Same?")])
    assert model.asks[0].query.first.tobytes() == noise.tobytes()
    assert model.asks[0].query.first.size == (31, 17)


def test_two_calls_in_a_row_and_calls_from_event_loops() -> None:
    with served(FakeModel()) as (url, _), RewardClient(url, NAME) as client:
        expected = [true_score(q) for q in queries(5)]
        for _ in range(2):
            assert [s.value for s in client.score(queries(5))] == pytest.approx(expected)
        for _ in range(2):
            assert [s.value for s in asyncio.run(client.score_async(queries(5)))] == pytest.approx(expected)


@pytest.mark.slow
def test_many_at_once_equal_one_at_a_time() -> None:
    asked = queries(200)
    model = FakeModel()
    with served(model) as (url, _):
        with RewardClient(url, NAME, in_flight=64) as client:
            together = [s.value for s in client.score(asked)]
        with RewardClient(url, NAME, in_flight=1) as client:
            alone = [s.value for s in client.score(asked)]
    assert together == pytest.approx(alone, abs=1e-12)
    assert max(len(batch) for batch in model.batches) > 1


def test_both_orders_of_a_pair_are_averaged_and_asked_once_each(tmp_path: Path) -> None:
    asked = queries(4)
    turned = [PairQuery(q.second, q.first, q.instruction) for q in asked]
    model = FakeModel()
    with served(model) as (url, _), RewardClient(url, NAME, both_orders=True) as client:
        scores = client.score([*asked, *turned])
    means = [(true_score(a) + true_score(b)) / 2 for a, b in zip(asked, turned, strict=True)]
    assert [s.value for s in scores] == pytest.approx(means * 2)
    assert [true_score(q) for q in asked] != pytest.approx(means)
    assert len(model.asks) == 8


def test_a_pair_of_which_one_order_failed_is_nan() -> None:
    def score(queries: Sequence[PairQuery]) -> list[Score]:
        return [Score(0.5), Score(0.5), Score(math.nan, "lost"), Score(0.7)]

    one, two = in_both_orders(score, queries(2))
    assert one.failed and one.cause == "lost" and two.value == pytest.approx(0.6) and two.cause is None


def test_jpeg_only_when_asked_and_never_mixed_with_png(tmp_path: Path) -> None:
    noise = Image.effect_noise((64, 64), 90).convert("RGB")
    model, file, query = FakeModel(), tmp_path / "scores.db", PairQuery(noise, panel(1, 64), "Same?")
    with served(model) as (url, _):
        for picture_format in ("jpeg", "png"):
            with RewardClient(url, NAME, cache=file, picture_format=picture_format) as client:  # type: ignore[arg-type]
                client.score([query])
    lossy, lossless = (ask.query.first for ask in model.asks)
    assert lossy.tobytes() != noise.tobytes() == lossless.tobytes()


def test_a_client_waits_for_a_server_that_is_down_and_no_longer_than_it_was_told() -> None:
    patient = Patience(retries=0, backoff_s=0.001, wait_s=0.2)
    with Scripted([GOOD]) as server:
        url = server.url
    with RewardClient(url, NAME, patience=patient) as client, pytest.raises(ServingError, match="connection refused"):
        client.check()
    assert client.retries >= 1


@pytest.mark.parametrize(
    ("header", "at_least_s", "at_most_s"),
    [
        ("7", 7, 7),
        ("999999999", MAX_PAUSE_S, MAX_PAUSE_S),
        ("soon", 0, 1),
        ("-3", 0, 1),
        ("\u00b2", 0, 1),
        (None, 0, 1),
    ],
)
def test_a_client_waits_as_long_as_a_busy_server_asks(
    monkeypatch: pytest.MonkeyPatch, header: str | None, at_least_s: float, at_most_s: float
) -> None:
    pauses: list[float] = []
    pause = Patience.pause

    def record(patience: Patience, attempt: int, at_least_s: float = 0.0) -> float:
        pauses.append(pause(patience, attempt, at_least_s))
        return 0.0

    monkeypatch.setattr(Patience, "pause", record)
    busy = reply(503, b"busy", **({} if header is None else {"Retry-After": header}))
    with Scripted([busy, GOOD]) as server, RewardClient(server.url, NAME, patience=QUICK) as client:
        assert client.score(queries(1))[0].value == pytest.approx(0.75)
    assert len(pauses) == 1 and at_least_s <= pauses[0] <= at_most_s


def test_a_client_follows_a_server_to_its_new_address() -> None:
    with Scripted([GOOD]) as old:
        url = old.url
    with (
        Scripted([GOOD]) as new,
        RewardClient(url, NAME, patience=QUICK, locate=lambda: new.url) as client,
    ):
        assert client.score(queries(1))[0].value == pytest.approx(0.75)
        assert client.url == new.url


def test_failures_are_nan_with_their_cause_and_not_cached(tmp_path: Path) -> None:
    asked = [*queries(3), *queries(1, "mute"), *queries(1, "crash")]
    with (
        served(FakeModel()) as (url, _),
        RewardClient(url, NAME, cache=tmp_path / "c.db", patience=Patience(1, 0.001)) as client,
    ):
        scores = client.score(asked)
        assert [s.failed for s in scores] == [False] * 3 + [True] * 2
        assert "neither Yes nor No" in str(scores[3].cause)
        assert "HTTP 500" in str(scores[4].cause) and math.isnan(scores[4].value)
        assert sum(client.counts.failures.values()) == 2
        client.score(asked)
        assert client.counts.cached == 3


def test_one_failed_query_of_a_small_call_stops_nobody() -> None:
    """A call of two images has too few queries for a share of them: the training counts over an epoch."""
    with (
        Scripted([GOOD, reply(400, b'{"error": {"message": "no such thing"}}'), GOOD]) as server,
        RewardClient(server.url, NAME, in_flight=1) as client,
    ):
        scores = client.score(queries(3))
        assert [score.failed for score in scores] == [False, True, False]
        assert client.counts.failures == {"HTTP 400: no such thing": 1}


def test_a_server_that_is_gone_stops_the_caller() -> None:
    with RewardClient("http://127.0.0.1:1", NAME, in_flight=2, patience=Patience(1, 0.001)) as client:
        client._checked = True
        with pytest.raises(ServingError) as error:
            client.score(queries(40))
    assert "127.0.0.1:1" in str(error.value) and "refused" in str(error.value)


@pytest.mark.parametrize("fault", [reply(500, b"oops"), reply(503, b""), reply(429, b"{}"), hang_up, half])
def test_overload_and_dropped_connections_are_retried(fault: object) -> None:
    with Scripted([fault, fault, GOOD]) as server, RewardClient(server.url, NAME, patience=QUICK) as client:  # type: ignore[list-item]
        assert client.score(queries(1))[0].value == pytest.approx(0.75)
        assert server.asked == 3 and client.retries == 2


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (reply(400, b'{"error": {"message": "bad picture"}}'), "HTTP 400: bad picture"),
        (reply(413, b""), "HTTP 413"),
        (reply(200, b"not json"), "not a JSON object"),
        (reply(200, b'{"model": "%s"}' % NAME.encode()), "lacks log-probabilities"),
        (silence, "no answer within"),
    ],
)
def test_other_faults_are_not_retried(fault: object, cause: str) -> None:
    with Scripted([fault]) as server:  # type: ignore[list-item]
        with RewardClient(server.url, NAME, patience=QUICK, timeout_s=0.3) as client:
            score = client.score(queries(1))[0]
        assert score.failed and cause in str(score.cause)
        assert server.asked == 1


def test_another_model_is_refused_with_both_ids() -> None:
    other = "paco-reward@ffffffffffff"
    with Scripted([GOOD], name=other) as server, RewardClient(server.url, NAME) as client:
        with pytest.raises(ServingError) as error:
            client.score(queries(1))
        assert NAME in str(error.value) and other in str(error.value) and server.asked == 0
    with Scripted([reply(200, completion(0.5, other))]) as server, RewardClient(server.url, NAME) as client:
        with pytest.raises(ServingError) as error:
            client.score(queries(1))
        assert NAME in str(error.value) and other in str(error.value)


def test_no_server_is_an_error_and_not_a_score() -> None:
    with Scripted([GOOD]) as server:
        url = server.url
    with RewardClient(url, NAME, patience=QUICK) as client, pytest.raises(ServingError, match="connection refused"):
        client.score(queries(1))


def test_a_server_that_comes_back_loses_no_question() -> None:
    """The server ends in the middle of a call and returns on the same port: all scored, none made up."""
    asked = queries(120)
    model, half_way = FakeModel(), threading.Event()

    class Slow(FakeModel):
        def __call__(self, asks: object) -> object:  # type: ignore[override]
            if len(model.asks) > 20:
                half_way.set()
            return model(asks)  # type: ignore[arg-type]

    scores: list[float] = []
    with served(Slow(), max_batch=4) as (url, _):
        client = RewardClient(url, NAME, in_flight=8, patience=Patience(retries=2, backoff_s=0.01, wait_s=60))
        caller = threading.Thread(target=lambda: scores.extend(s.value for s in client.score(asked)))
        caller.start()
        assert half_way.wait(60)
    with served(model, port=int(url.rsplit(":", 1)[1])):
        caller.join(60)
        client.close()
    assert scores == pytest.approx([true_score(q) for q in asked])
