"""The reward server and the gateway under inputs that nobody honest sends: each is answered, and does no harm."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import strategies as st
from PIL import Image

from paco_core.io.files import write_json
from paco_core.io.shards import encode_png
from paco_core.reward_model.scorer import Scorer
from paco_core.serving.engines.answers import Answerer, counter
from paco_core.serving.engines.transformers_app import ModelServer, build_app
from paco_core.serving.protocol import ChatRequest
from paco_core.serving.servers.gateway import Gateway, routes
from paco_core.serving.servers.gateway import build_app as build_gateway
from paco_core.serving.servers.registry import Registry, ServerRecord
from tests.faults import hostile
from tests.faults.verdicts import Ledger
from tests.support import tiny_vlm
from tests.support.serving_fakes import NAME, listening
from tests.unit.serving.test_app import GOOD, request, url_of

CHAT = "/v1/chat/completions"
PIXELS = (3136, 3136)
GONE = "paco-reward@000000000000"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The real application around a real, if tiny, Qwen2.5-VL with random weights."""
    folder = tiny_vlm.build(tmp_path_factory.mktemp("hostile") / "tiny")
    scorer = Scorer(folder, min_pixels=PIXELS[0], max_pixels=PIXELS[1], max_batch=8)
    answerer = Answerer(scorer)
    count = counter(scorer.network)
    return build_app(ModelServer(answerer, NAME, max_batch=8, count=count, answer_tokens=answerer.answer_tokens))


@pytest.fixture(scope="module")
def server(app: Any) -> Iterator[str]:
    with listening(app) as url:
        yield url


@pytest.fixture(scope="module")
def gateway(server: str) -> Iterator[str]:
    """Before the server, and before one whose engine has died."""
    where = {NAME: server, GONE: "http://127.0.0.1:9"}
    with listening(build_gateway(Gateway(lambda: where, timeout_s=60))) as url:
        yield url


@pytest.fixture(params=["reward server", "gateway"])
def door(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param, request.getfixturevalue("server" if request.param == "reward server" else "gateway")


def score(url: str) -> Any:
    """What a good request is answered, but for its id and time."""
    reply = hostile.send(url, "POST", CHAT, json.dumps(request([GOOD, GOOD])).encode())
    assert reply.status == 200, reply
    return reply.json()["choices"]


def accepted_what(body: bytes, reply: hostile.Reply) -> hostile.Breach:
    """A request that was answered as if it were good must have been one."""
    if reply.status != 200:
        return None
    given = json.loads(body)
    content = given["messages"][0]["content"]
    urls = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    texts = [part["text"] for part in content if part["type"] == "text"]
    if given["model"] != NAME or len(given["messages"]) != 1 or len(urls) != 2 or len(texts) != 1:
        return "wrong", f"answered 200 to {body[:300]!r}"
    for entry in (reply.json()["choices"][0]["logprobs"] or {"content": [{}]})["content"][0].get("top_logprobs", []):
        if not -1e9 < entry["logprob"] <= 0:
            return "wrong", f"a log-probability of {entry['logprob']}"
    return None


def unharmed(url: str, before: Any) -> hostile.Breach:
    health = hostile.send(url, "GET", "/health")
    if health.status not in (200, 503):  # the gateway's: one of its engines is down
        return "unclear", f"/health answers {health.status}"
    return None if score(url) == before else ("wrong", "another score than before")


def test_bodies(door: tuple[str, str], ledger: Ledger, tries: Callable[[int, int], int]) -> None:
    name, url = door
    before = score(url)
    with ledger.row("fuzzed body", name, hostile=True) as row:

        def act(body: bytes) -> None:
            reply = hostile.send(url, "POST", CHAT, body)
            row.judge(f"{body[:80]!r}", hostile.answered(reply), accepted_what(body, reply))

        hostile.each(hostile.bodies(request([GOOD, GOOD])), tries(450, 20), act)
        row.judge("and a good one afterwards", unharmed(url, before))


@st.composite
def pictures(draw: st.DrawFn) -> str:
    """Data URLs of damaged, odd or mislabelled pictures."""
    size = draw(st.sampled_from([(1, 1), (1, 300), (300, 1), (2, 2000), (64, 64), (28, 28), (5000, 20)]))
    mode = draw(st.sampled_from(["RGB", "RGBA", "L", "1", "P", "CMYK", "I;16", "LA"]))
    form = "JPEG" if mode == "CMYK" else draw(st.sampled_from(["PNG", "WEBP"] if mode in ("RGB", "RGBA") else ["PNG"]))
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, form)
    data = bytearray(buffer.getvalue())
    how = draw(st.sampled_from(["whole", "cut", "flipped", "longer", "head", "none"]))
    if how == "cut":
        data = data[: draw(st.integers(0, len(data) - 1))]
    elif how == "flipped":
        data[draw(st.integers(0, len(data) - 1))] ^= draw(st.integers(1, 255))
    elif how == "longer":
        data += draw(st.binary(max_size=50))
    elif how == "head":
        data[:8] = draw(st.binary(min_size=8, max_size=8))
    kind = draw(st.sampled_from(["image/png", "image/jpeg", "image/gif", "text/html", "image/png;x=y", ""]))
    return f"data:{kind};base64,{base64.b64encode(b'' if how == 'none' else bytes(data)).decode()}"


def test_pictures(door: tuple[str, str], ledger: Ledger, tries: Callable[[int, int], int]) -> None:
    name, url = door
    before = score(url)
    with ledger.row("fuzzed picture", name, hostile=True) as row:

        def act(picture: str) -> None:
            body = json.dumps(request([GOOD, picture])).encode()
            reply = hostile.send(url, "POST", CHAT, body)
            row.judge(picture[:80], hostile.answered(reply), accepted_what(body, reply))

        hostile.each(pictures(), tries(200, 12), act)
        row.judge("and a good one afterwards", unharmed(url, before))


def test_paths_and_methods(door: tuple[str, str], ledger: Ledger, tries: Callable[[int, int], int]) -> None:
    name, url = door
    methods = st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "BREW"])
    starts = st.sampled_from(["/", "/v1/", "/v1/models/", "/health/", "/metrics/", "/../"])
    with ledger.row("fuzzed path", name, hostile=True) as row:

        def act(asked: tuple[str, str, str]) -> None:
            method, start, piece = asked
            reply = hostile.send(url, method, start + hostile.quoted(piece))
            breach = None if method == "HEAD" and reply.status else hostile.answered(reply)
            row.judge(f"{method} {start}{piece[:40]!r}", breach)

        hostile.each(st.tuples(methods, starts, hostile.pieces), tries(100, 10), act)


def test_bytes_that_are_no_http(door: tuple[str, str], ledger: Ledger, tries: Callable[[int, int], int]) -> None:
    name, url = door
    before = score(url)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    lines = [
        b"Content-Length: -1", b"Content-Length: 5\r\nContent-Length: 6", b"Transfer-Encoding: chunked\r\n\r\nzz",
        b"Content-Length: 99999999999999999999", b"X: " + b"a" * 70_000, b"\xff: \xff", b":", b"Expect: 100-continue",
    ]  # fmt: skip
    noise = st.binary(max_size=300) | st.sampled_from(lines).map(lambda line: head + line + b"\r\n\r\n{}")
    with ledger.row("bytes that are no HTTP", name, hostile=True) as row:

        def act(data: bytes) -> None:
            reply = hostile.shout(url, data)
            hung = ("unclear", "no answer and no end") if reply.status is None else None
            failed = ("unclear", f"HTTP {reply.status}") if (reply.status or 0) >= 500 else None
            row.judge(f"{data[:60]!r}", hung, failed)  # to hang up is an answer to noise

        hostile.each(noise, tries(100, 10), act)
        row.judge("and a good one afterwards", unharmed(url, before))


def question(asked: ChatRequest) -> None:
    """What FastAPI describes; the server checks questions by the same model."""


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
def test_the_schema_of_the_reward_server(
    server: str, ledger: Ledger, tries: Callable[[int, int], int], mode: schemathesis.GenerationMode
) -> None:
    """What schemathesis makes from the server's model of a request: valid by it, or invalid in one place."""
    before = score(server)
    with ledger.row("from its OpenAPI schema", "reward server", hostile=True) as row:

        def act(case: schemathesis.Case) -> None:
            reply = case_reply(case, server)
            row.judge(case.operation.label, hostile.answered(reply))

        described = FastAPI()
        described.post(CHAT)(question)
        operation = schemathesis.openapi.from_dict(described.openapi())[CHAT]["POST"]
        hostile.each(operation.as_strategy(mode), tries(100, 8), act)
        row.judge("and a good one afterwards", unharmed(server, before))


def case_reply(case: schemathesis.Case, url: str) -> hostile.Reply:
    import requests

    try:
        response = case.call(base_url=url, timeout=hostile.PATIENCE_S)
    except requests.Timeout:
        return hostile.Reply(None)
    except (requests.RequestException, UnicodeError, ValueError):  # it cannot even be sent
        return hostile.Reply(400, b"not a request")
    body = b"".join(response.content) if isinstance(response.content, list) else response.content
    return hostile.Reply(response.status_code, body or b"", tuple((k, v[0]) for k, v in response.headers.items()))


FOREIGN = [
    ("a name that was pointed here (DNS rebinding)", {"Host": "evil.example"}, range(400, 500)),
    ("another name with our port", {"Host": "evil.example:80"}, range(400, 500)),
    ("from another page", {"Origin": "http://evil.example"}, range(400, 500)),
    ("from a page without a name", {"Origin": "null"}, range(400, 500)),
    ("a form's content type", {"Content-Type": "text/plain"}, range(400, 500)),
    ("another form's content type", {"Content-Type": "application/x-www-form-urlencoded"}, range(400, 500)),
]


def test_other_peoples_pages(door: tuple[str, str], ledger: Ledger) -> None:
    """A page in a browser on this machine can send requests, too."""
    name, url = door
    body = json.dumps(request([GOOD, GOOD])).encode()
    with ledger.row("request of a foreign page", name, hostile=True) as row:
        for what, headers, expected in FOREIGN:
            reply = hostile.send(url, "POST", CHAT, body, **headers)
            wrong = None if reply.status in expected else ("wrong", f"answered {reply.status}")
            row.judge(what, hostile.answered(reply), wrong)


def test_limits_of_the_model(server: str, ledger: Ledger) -> None:
    """What the protocol allows and the model cannot do: a cause, and no made-up score."""
    thin, long = url_of(encode_png(Image.new("RGB", (4, 2000)))), "same " * 3000
    with ledger.row("beyond the model", "reward server", hostile=True) as row:
        for what, given in (
            ("a picture 500 times as high as wide", request([GOOD, thin])),
            ("a question longer than the model's window", request([GOOD, GOOD], long)),
            ("reasons beyond the model's window", request([GOOD, GOOD], long, max_tokens=8, logprobs=False)),
        ):
            reply = hostile.send(server, "POST", CHAT, json.dumps(given).encode())
            wrong = ("wrong", "a score was made up") if reply.status == 200 else None
            row.judge(what, hostile.answered(reply), wrong)


def test_a_model_whose_engine_died(gateway: str, ledger: Ledger) -> None:
    """A registered model that is down is asked again later (502, 503); 404 would be final."""
    with ledger.row("its engine died", "gateway") as row:
        body = json.dumps(request([GOOD, GOOD], model=GONE)).encode()
        reply = hostile.send(gateway, "POST", CHAT, body)
        row.judge("asked for", None if reply.status in (502, 503) else ("wrong", f"HTTP {reply.status}"))


def test_a_registered_model_whose_supervisor_was_killed(tmp_path: Path, ledger: Ledger) -> None:
    """The gateway's own routes: what the registry holds when a server and its supervisor were killed a moment ago."""
    registry = Registry(tmp_path)
    home = registry.home(GONE)
    home.mkdir(parents=True)
    (home / "server.log").write_text("killed\n")
    (home / "alive").touch()  # nobody holds its lock
    write_json(
        home / "server.json", asdict(ServerRecord(GONE, "http://127.0.0.1:9", 2**22, "transformers", "gone", 0.0))
    )
    door = listening(build_gateway(Gateway(lambda: routes(registry), timeout_s=5)))
    with door as url, ledger.row("its engine died", "gateway") as row:
        reply = hostile.send(url, "POST", CHAT, json.dumps(request([GOOD, GOOD], model=GONE)).encode())
        final = ("wrong", f"HTTP {reply.status}, which clients take as final")
        row.judge("and its supervisor with it", None if reply.status in (502, 503) else final)
