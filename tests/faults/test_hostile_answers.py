"""Invalid answers of a reward server or a chat model: none of them becomes a score that it does not contain."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import strategies as st

from paco_core.io.files import DataError
from paco_core.io.http_client import Patience
from paco_core.reward_model.yes_probability import NO, YES, Score
from paco_core.serving.client import RewardClient
from paco_core.serving.protocol import ServingError
from tests.faults import hostile
from tests.faults.verdicts import Breach, Ledger
from tests.support.loopback import Loopback, Quiet
from tests.support.serving_fakes import NAME, completion, queries, reply

LIMIT_S = 2.0  # the client's own limit for one answer; what takes longer than twice that counts as a hang


class Saying(Loopback):
    """Answers every question with what it is given last; ``models`` is its list of models."""

    def __init__(self) -> None:
        state = self
        self.answer: Callable[[Quiet], None] = reply(200, completion())
        self.models = json.dumps({"data": [{"id": NAME}]}).encode()

        class Handler(Quiet):
            def do_GET(self) -> None:
                self.reply(200, state.models)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                state.answer(self)

        super().__init__(Handler)


@pytest.fixture
def server() -> Iterator[Saying]:
    with Saying() as reward_server:
        yield reward_server


def client(server: Saying, cache: Path | None = None) -> RewardClient:
    patience = Patience(retries=0, backoff_s=0.01)
    return RewardClient(server.url, NAME, timeout_s=LIMIT_S, patience=patience, cache=cache)


def stated_score(answer: Any) -> float | None:
    """The score that an answer holds by the definition: P(Yes) of the first token; None where it holds none."""
    try:
        entries = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        words = {word: [entry["logprob"] for entry in entries if entry["token"] == word] for word in (YES, NO)}
        if answer["model"] != NAME or not all(map(_logprob, words[YES] + words[NO])):
            return None
        share = numpy.exp(numpy.maximum(words[YES] + words[NO], -1e4)).sum()
        if share == 0 or share > 1.02:  # no distribution has these
            return None
        yes, no = (float(numpy.exp(numpy.maximum(words[word], -1e4)).sum()) for word in (YES, NO))
        return yes / (yes + no)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return None


def _logprob(value: Any) -> bool:
    """A log-probability is a finite number, at most 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value <= 0


def scored(client: RewardClient, expected: float | None) -> Breach:
    """What the client makes of the next answer."""
    began = time.monotonic()
    try:
        (score,) = client.score(queries(1))
    except (ServingError, DataError):
        score = Score(math.nan, "refused")
    except Exception as error:
        return "unclear", f"raw {type(error).__name__}: {str(error)[:120]}"
    if time.monotonic() - began > 2 * LIMIT_S + 1:
        return "unclear", f"took {time.monotonic() - began:.0f} s at a limit of {LIMIT_S:g} s"
    if score.failed:
        return None if score.cause else ("unclear", "no cause")
    if expected is None or abs(score.value - expected) > 1e-6:
        return "wrong", f"scored {score.value}, the answer holds {expected}"
    return None


@st.composite
def answers(draw: st.DrawFn) -> Any:
    """Chat completions whose log-probabilities are any numbers and other things."""
    odd = st.sampled_from([float("nan"), float("inf"), float("-inf"), 0.1, 5, "−1", "-0.5", None, True, [], 1e400])
    value = odd | st.floats(-50, 0) | st.floats()
    tokens = draw(st.lists(st.sampled_from([YES, NO, "yes", " Yes", "Maybe", "", None, 1]), max_size=5, unique_by=str))
    rivals = [{"token": token, "logprob": draw(value)} for token in tokens]
    content = [{"token": "Yes", "logprob": -0.1, "top_logprobs": rivals}]
    return {"model": NAME, "choices": [{"logprobs": {"content": content}}]}


def test_log_probabilities(server: Saying, ledger: Ledger, tries: Callable[[int, int], int]) -> None:
    with client(server) as asking, ledger.row("fuzzed log-probabilities", "reward client", hostile=True) as row:

        def act(answer: Any) -> None:
            body = hostile.encoded(answer)
            server.answer = reply(200, body)
            row.judge(body[60:200].decode(), scored(asking, stated_score(json.loads(body))))

        hostile.run_examples(answers(), tries(250, 25), act)


def test_bodies(server: Saying, ledger: Ledger, tries: Callable[[int, int], int]) -> None:
    with client(server) as asking, ledger.row("fuzzed answer", "reward client", hostile=True) as row:

        def act(body: bytes) -> None:
            server.answer = reply(200, body)
            try:
                expected = stated_score(json.loads(body))
            except (ValueError, RecursionError):
                expected = None
            row.judge(f"{body[:100]!r}", scored(asking, expected))

        hostile.run_examples(hostile.bodies(json.loads(completion())), tries(250, 20), act)


def test_models(server: Saying, ledger: Ledger, tries: Callable[[int, int], int]) -> None:
    good = {"data": [{"id": NAME, "object": "model", "answer_tokens": {"Yes": 5, "No": 6}}]}
    with ledger.row("fuzzed list of models", "reward client", hostile=True) as row:

        def act(body: bytes) -> None:
            server.models = body
            with client(server) as asking:
                row.judge(f"{body[:100]!r}", scored(asking, 0.75))

        hostile.run_examples(hostile.bodies(good), tries(120, 10), act)


def drip(handler: Quiet) -> None:
    """A byte now and then, so that no single read takes long."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    with suppress(OSError):
        for _ in range(40):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.4)
    handler.close_connection = True


def test_an_answer_that_takes_for_ever(server: Saying, ledger: Ledger) -> None:
    with client(server) as asking, ledger.row("an answer without end", "reward client", hostile=True) as row:
        server.answer = drip
        row.judge("a byte now and then", scored(asking, None))


IMPOSSIBLE = [0, -0.1, -9999, -1e308, float("nan"), float("inf"), float("-inf"), 5.0]


def test_impossible_probabilities(server: Saying, tmp_path: Path, ledger: Ledger) -> None:
    """The same for both words: no score of 0.5, and none that the cache gives in the next run."""
    with ledger.row("impossible probabilities", "reward client with a cache", hostile=True) as row:
        for number, bad in enumerate(IMPOSSIBLE):
            content = [{"top_logprobs": [{"token": word, "logprob": bad} for word in (YES, NO)]}]
            answer = {"model": NAME, "choices": [{"logprobs": {"content": content}}]}
            breaches = []
            for said_now in (reply(200, json.dumps(answer).encode()), reply(500, b"{}")):
                server.answer = said_now
                with client(server, tmp_path / f"{number}.db") as asking:
                    breaches.append(scored(asking, None))
                    assert sum(asking.counts.failures.values()) == 1
            row.judge(f"{bad}", *breaches)
