"""The client asks each question once, retries only what may help, and never makes up a score."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from paco_core.io.http_client import MAX_PAUSE_S, Patience
from paco_core.reward_model.yes_probability import PairQuery, Score, in_both_orders
from paco_core.serving.client import RewardClient
from paco_core.serving.protocol import ServingError
from tests.support.dataset_world import quick
from tests.support.loopback import Quiet, Step, hang_up
from tests.support.serving_fakes import (
    NAME,
    FakeModel,
    Scripted,
    completion,
    half,
    panel,
    queries,
    reply,
    served,
    silence,
    true_score,
)

QUICK = Patience(retries=3, backoff_s=0.001)
GOOD = reply(200, completion(0.75))
OTHER = "paco-reward@ffffffffffff"
DEEP = b'{"model": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


class Fault(NamedTuple):
    """Something other than a score; ``retryable``: another try may help; ``fatal``: nobody gets a score any more."""

    step: Step
    retryable: bool = False
    down: bool = False
    fatal: bool = False


FAULTS = {
    **{str(status): Fault(reply(status, b"oops"), retryable=True) for status in (409, 429, 500)},
    **{str(status): Fault(reply(status, b""), retryable=True, down=True) for status in (502, 503)},
    "dropped": Fault(hang_up, retryable=True, down=True),
    "half": Fault(half, retryable=True, down=True),
    "400": Fault(reply(400, b'{"error": {"message": "bad picture"}}')),
    **{str(status): Fault(reply(status, b"{}"), fatal=True) for status in (401, 403, 404)},
    "nested": Fault(reply(200, DEEP)),
    "no list": Fault(reply(200, b'{"model": "%s", "choices": {"0": 1}}' % NAME.encode())),
    "not a number": Fault(reply(200, completion(math.nan))),
    "another model": Fault(reply(200, completion(0.5, OTHER)), fatal=True),
}


@quick
@given(st.lists(st.sampled_from(["good", *FAULTS]), max_size=8), st.integers(0, 3), st.sampled_from([0.0, 60.0]))
def test_tries_scores_and_errors_after_any_sequence_of_faults(script: list[str], retries: int, wait_s: float) -> None:
    """Two calls with three questions each; while the server is down, tries go on for ``wait_s``."""
    steps = [
        FAULTS[name].step if name in FAULTS else reply(200, completion(n / 100)) for n, name in enumerate(script, 1)
    ]
    steps += [reply(200, completion((len(script) + n) / 100)) for n in range(1, 7)]
    expected_texts: list[int] = []
    known_scores: dict[int, float] = {}

    def is_fatal(question: int) -> bool:
        """Ask a question as it should be asked; whether the call ends with it."""
        for attempt in count():
            expected_texts.append(question)
            fault = FAULTS.get(script[len(expected_texts) - 1]) if len(expected_texts) <= len(script) else None
            if fault is None:
                known_scores[question] = len(expected_texts) / 100
            elif fault.retryable and (attempt < retries or (fault.down and wait_s > 0)):
                continue
            return fault is not None and fault.fatal
        raise AssertionError

    pair_queries = [PairQuery(panel(1), panel(2), str(n)) for n in range(3)]
    patience = Patience(retries, backoff_s=0, wait_s=wait_s)
    with (
        TemporaryDirectory() as folder,
        Scripted(steps) as server,
        RewardClient(server.url, NAME, in_flight=1, patience=patience, cache=Path(folder) / "scores.db") as client,
    ):
        for _ in range(2):
            first = len(known_scores)
            if any(is_fatal(n) for n in range(3) if n not in known_scores):
                with pytest.raises(ServingError):
                    client.score(pair_queries)
                continue
            values = [score.value for score in client.score(pair_queries)]
            assert values == pytest.approx([known_scores.get(n, math.nan) for n in range(3)], nan_ok=True)
            assert client.counts.cached >= first
        assert [int(body["messages"][0]["content"][2]["text"]) for body in server.bodies] == expected_texts
        assert client.counts.requests - sum(client.counts.failures.values()) == len(known_scores)


def test_equal_questions_are_asked_once_and_equal_panels_encoded_once() -> None:
    model = FakeModel()
    panels = [panel(n) for n in range(4)]
    copies = [image.copy() for image in panels]
    pairs = [(a, b) for a in range(4) for b in range(a + 1, 4)]
    pair_queries = [PairQuery(panels[a], panels[b], "Same?") for a, b in pairs]
    copied_queries = [PairQuery(copies[a], copies[b], "Same?") for a, b in pairs]
    other_queries = [PairQuery(panels[0], panels[1], "Another?"), PairQuery(panels[1], panels[0], "Same?")]
    with served(model) as (url, state), RewardClient(url, NAME) as client:
        scores = client.score(pair_queries + copied_queries + other_queries)
        assert [s.value for s in scores] == pytest.approx(
            [true_score(q) for q in [*pair_queries, *pair_queries, *other_queries]]
        )
        assert len(model.requests) == client.counts.requests == 6 + 2
        assert client.counts.encoded == state.pictures.num_decoded == 4
        assert client.generate_reasons(pair_queries[:2]) == ["Yes"] * 2
        for _ in range(2):  # from an event loop that ends, and another one
            assert asyncio.run(client.score_async(pair_queries)) == scores[:6]


def test_both_orders_of_a_pair_are_averaged_and_asked_once_each() -> None:
    pair_queries = queries(4)
    swapped = [PairQuery(q.second, q.first, q.instruction) for q in pair_queries]
    model = FakeModel()
    with served(model) as (url, _), RewardClient(url, NAME, both_orders=True) as client:
        scores = client.score([*pair_queries, *swapped])
    means = [(true_score(a) + true_score(b)) / 2 for a, b in zip(pair_queries, swapped, strict=True)]
    assert [s.value for s in scores] == pytest.approx(means * 2)
    assert [true_score(q) for q in pair_queries] != pytest.approx(means)
    assert len(model.requests) == 8

    def score(queries: Sequence[PairQuery]) -> list[Score]:
        return [Score(0.5), Score(0.5), Score(math.nan, "lost"), Score(0.7)]

    first_score, second_score = in_both_orders(score, queries(2))
    assert (
        first_score.failed
        and first_score.cause == "lost"
        and second_score.value == pytest.approx(0.6)
        and second_score.cause is None
    )


def test_jpeg_only_when_asked_and_never_mixed_with_png(tmp_path: Path) -> None:
    noise = Image.effect_noise((64, 64), 90).convert("RGB")
    model, file, query = FakeModel(), tmp_path / "scores.db", PairQuery(noise, panel(1, 64), "Same?")
    with served(model) as (url, _):
        for picture_format in ("jpeg", "png"):
            with RewardClient(url, NAME, cache=file, picture_format=picture_format) as client:  # type: ignore[arg-type]
                client.score([query])
    lossy, lossless = (request.query.first for request in model.requests)
    assert lossy.tobytes() != noise.tobytes() == lossless.tobytes()


def test_no_server_is_waited_for_and_then_an_error_and_no_score() -> None:
    with Scripted([GOOD]) as server:
        url = server.url
    with RewardClient(url, NAME, in_flight=2, patience=Patience(retries=0, backoff_s=0.001, wait_s=0.2)) as client:
        with pytest.raises(ServingError, match=url):
            client.check()
        assert client.retries >= 1
        client._checked = True  # it was there, and is gone
        with pytest.raises(ServingError, match=url):
            client.score(queries(10))


@pytest.mark.parametrize(
    ("header", "at_least_s", "at_most_s"),
    [("7", 7, 7), ("999999999", MAX_PAUSE_S, MAX_PAUSE_S), ("-3", 0, 1), ("\u00b2", 0, 1), (None, 0, 1)],
)
def test_a_client_waits_as_long_as_a_busy_server_asks(header: str | None, at_least_s: float, at_most_s: float) -> None:
    pauses: list[float] = []

    class Noting(Patience):
        def pause(self, attempt: int, at_least_s: float = 0.0) -> float:
            pauses.append(super().pause(attempt, at_least_s))
            return 0.0

    busy = reply(503, b"busy", **({} if header is None else {"Retry-After": header}))
    with Scripted([busy, GOOD]) as server, RewardClient(server.url, NAME, patience=Noting()) as client:
        assert client.score(queries(1))[0].value == pytest.approx(0.75)
    assert len(pauses) == 1 and at_least_s <= pauses[0] <= at_most_s


def test_a_client_follows_a_server_to_its_new_address() -> None:
    with Scripted([GOOD]) as old:
        url = old.url
    with Scripted([GOOD]) as new, RewardClient(url, NAME, patience=QUICK, locate=lambda: new.url) as client:
        assert client.score(queries(1))[0].value == pytest.approx(0.75)
        assert client.url == new.url


def dripping(handler: Quiet) -> None:
    """A whole answer, a byte at a time, each well within the time limit."""
    body = completion(0.75)
    for byte in f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body:
        handler.wfile.write(bytes([byte]))
        handler.wfile.flush()
        threading.Event().wait(0.05)
    handler.close_connection = True


@pytest.mark.parametrize("step", [dripping, silence])
def test_one_time_limit_holds_for_the_whole_request_and_is_no_reason_to_ask_again(step: Step) -> None:
    """The answer is a good one, and takes 10 s: as long as its next byte came in time, it was waited for."""
    with Scripted([step]) as server:
        with RewardClient(server.url, NAME, patience=QUICK, timeout_s=0.5) as client:
            score = client.score(queries(1))[0]
        assert score.failed and score.cause == "no answer within 0.5 s" and server.num_requests == 1


def test_another_model_is_refused_with_both_ids() -> None:
    for server, num_requests in (
        (Scripted([GOOD], name=OTHER), 0),
        (Scripted([reply(200, completion(0.5, OTHER))]), 1),
    ):
        with server, RewardClient(server.url, NAME) as client:
            with pytest.raises(ServingError) as error:
                client.score(queries(1))
            assert NAME in str(error.value) and OTHER in str(error.value) and server.num_requests == num_requests


def test_a_malformed_list_of_models_is_an_error_of_its_server() -> None:
    tokens: list[object] = [{"Yes": 1}, {"Yes": "x", "No": 2}]
    cards = [json.dumps({"data": [{"id": NAME, "answer_tokens": answer_tokens}]}).encode() for answer_tokens in tokens]
    for body in (b'{"data": null}', b'{"data": ["x"]}', b'{"data": [{}]}', DEEP, *cards):
        with (
            Scripted([GOOD], listing=body) as server,
            RewardClient(server.url, NAME) as client,
            pytest.raises(ServingError, match=server.url),
        ):
            client.score(queries(1))
