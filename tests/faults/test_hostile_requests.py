"""The reward server and the gateway under inputs that nobody honest sends: each is answered, and does no harm."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import strategies as st
from PIL import Image

from paco_core.io.shards import encode_png
from paco_core.reward_model.scorer import Scorer
from paco_core.serving.engines.answers import Answerer, counter
from paco_core.serving.engines.transformers_app import ModelServer, build_scoring_app
from paco_core.serving.servers.gateway import Gateway, build_gateway_app
from tests.faults import hostile
from tests.faults.verdicts import Breach, Ledger
from tests.support import tiny_vlm
from tests.support.serving_fakes import NAME, listening
from tests.unit.serving.test_app import GOOD, request, url_of

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The real application around a real, if tiny, Qwen2.5-VL with random weights."""
    folder = tiny_vlm.build(tmp_path_factory.mktemp("hostile") / "tiny")
    answerer = Answerer(Scorer(folder, min_pixels=3136, max_pixels=3136, max_batch=8))
    count = counter(answerer.scorer.network)
    app = build_scoring_app(ModelServer(answerer, NAME, max_batch=8, count=count, answer_tokens=answerer.answer_tokens))
    with listening(app) as url:
        yield url


@pytest.fixture(scope="module")
def gateway(server: str) -> Iterator[str]:
    with listening(build_gateway_app(Gateway(lambda: {NAME: server}, timeout_s=60))) as url:
        yield url


@pytest.fixture(params=["reward server", "gateway"])
def door(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param, request.getfixturevalue("server" if request.param == "reward server" else "gateway")


def score(url: str) -> Any:
    """What a good request is answered, but for its id and time."""
    reply = hostile.send(url, "POST", CHAT, json.dumps(request([GOOD, GOOD])).encode())
    assert reply.status == 200, reply
    return reply.json()["choices"]


def accepted_what(body: bytes, reply: hostile.Reply) -> Breach:
    """A request that was answered as if it were good must have been one."""
    if reply.status != 200:
        return None
    request_body = json.loads(body)
    content = request_body["messages"][0]["content"]
    urls = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    texts = [part["text"] for part in content if part["type"] == "text"]
    if request_body["model"] != NAME or len(request_body["messages"]) != 1 or len(urls) != 2 or len(texts) != 1:
        return "wrong", f"answered 200 to {body[:300]!r}"
    for entry in (reply.json()["choices"][0]["logprobs"] or {"content": [{}]})["content"][0].get("top_logprobs", []):
        if not -1e9 < entry["logprob"] <= 0:
            return "wrong", f"a log-probability of {entry['logprob']}"
    return None


def unharmed(url: str, before: Any) -> Breach:
    health = hostile.send(url, "GET", "/health")
    if health.status != 200:
        return "unclear", f"/health answers {health.status}"
    return None if score(url) == before else ("wrong", "another score than before")


def test_bodies(door: tuple[str, str], ledger: Ledger, tries: Callable[[int, int], int]) -> None:
    name, url = door
    before = score(url)
    with ledger.row("fuzzed body", name, hostile=True) as row:

        def act(body: bytes) -> None:
            reply = hostile.send(url, "POST", CHAT, body)
            row.judge(f"{body[:80]!r}", hostile.answered(reply), accepted_what(body, reply))

        hostile.run_examples(hostile.bodies(request([GOOD, GOOD])), tries(450, 20), act)
        row.judge("and a good one afterwards", unharmed(url, before))


@st.composite
def pictures(draw: st.DrawFn) -> str:
    """Data URLs of damaged, odd or mislabelled pictures."""
    size = draw(st.sampled_from([(1, 1), (1, 300), (2, 2000), (64, 64), (5000, 20)]))
    mode = draw(st.sampled_from(["RGB", "RGBA", "L", "1", "P", "CMYK", "I;16", "LA"]))
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, "JPEG" if mode == "CMYK" else "PNG")
    data = buffer.getvalue()
    at = draw(st.integers(0, len(data) - 1))
    noise = draw(st.binary(max_size=50))
    data = draw(st.sampled_from([data, data[:at], data[:at] + noise + data[at + 1 :], data + noise, noise + data[8:]]))
    kind = draw(st.sampled_from(["image/png", "image/gif", "text/html", "image/png;x=y", ""]))
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def test_pictures(server: str, ledger: Ledger, tries: Callable[[int, int], int]) -> None:
    before = score(server)
    with ledger.row("fuzzed picture", "reward server", hostile=True) as row:

        def act(picture: str) -> None:
            body = json.dumps(request([GOOD, picture])).encode()
            reply = hostile.send(server, "POST", CHAT, body)
            row.judge(picture[:80], hostile.answered(reply), accepted_what(body, reply))

        hostile.run_examples(pictures(), tries(200, 12), act)
        row.judge("and a good one afterwards", unharmed(server, before))


def test_other_peoples_pages(door: tuple[str, str], ledger: Ledger) -> None:
    """A page in a browser on this machine can send requests, too, also by a name that was pointed here."""
    name, url = door
    body = json.dumps(request([GOOD, GOOD])).encode()
    with ledger.row("request of a foreign page", name, hostile=True) as row:
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Content-Type": "text/plain"}):
            reply = hostile.send(url, "POST", CHAT, body, **headers)
            wrong: Breach = None if 400 <= (reply.status or 0) < 500 else ("wrong", f"answered {reply.status}")
            row.judge(str(headers), hostile.answered(reply), wrong)


def test_limits_of_the_model(server: str, ledger: Ledger) -> None:
    """What the protocol allows and the model cannot do: a cause, and no made-up score."""
    thin, long = url_of(encode_png(Image.new("RGB", (4, 2000)))), "same " * 3000
    with ledger.row("beyond the model", "reward server", hostile=True) as row:
        for label, body in (
            ("a picture 500 times as high as wide", request([GOOD, thin])),
            ("a question longer than the model's window", request([GOOD, GOOD], long)),
            ("reasons beyond the model's window", request([GOOD, GOOD], long, max_tokens=8, logprobs=False)),
        ):
            reply = hostile.send(server, "POST", CHAT, json.dumps(body).encode())
            wrong = ("wrong", "a score was made up") if reply.status == 200 else None
            row.judge(label, hostile.answered(reply), wrong)
