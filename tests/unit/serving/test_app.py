"""The embedded server, and a gateway before it: refusals with the right status, pages of other sites, other clients.

The request of :func:`official` is what `ConsistencyScorer` of github.com/X-GenGroup/PaCo-RL sends
(PaCo-GRPO/paco_grpo/rewards/consistency_scorer.py).
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from PIL import Image

from paco_core.io.shards import encode_png
from paco_core.serving import http_server
from paco_core.serving.client import RewardClient
from paco_core.serving.engines.transformers_app import build_scoring_app
from paco_core.serving.servers.gateway import Gateway, build_gateway_app
from tests.support.pictures import bomb
from tests.support.serving_fakes import (
    CHAT,
    NAME,
    FakeModel,
    call,
    fake_server,
    listening,
    panel,
    queries,
    served,
    true_score,
)


def url_of(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


GOOD = url_of(encode_png(panel(1)))


def request(images: list[str], text: str | None = "Same?", **fields: Any) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in images]
    if text is not None:
        content.append({"type": "text", "text": text})
    body = {"model": NAME, "messages": [{"role": "user", "content": content}], "max_tokens": 1, "logprobs": True}
    return {**body, "top_logprobs": 5, **fields}


def post(url: str, body: bytes | dict[str, Any] | Iterator[bytes], **headers: str) -> tuple[int, dict[str, Any]]:
    return call(url, body=body, **headers)[:2]


MODEL, BODY = FakeModel(), request([GOOD, GOOD])


@pytest.fixture(scope="module")
def server_urls() -> Iterator[list[str]]:
    """A server, and a gateway before it."""
    with (
        served(MODEL) as (url, _),
        listening(build_gateway_app(Gateway(lambda: {NAME: url}, timeout_s=60))) as gateway,
    ):
        yield [url, gateway]


def with_field(path: list[str | int], value: object) -> dict[str, Any]:
    """A good request in which one more field, which may be nested, has a value."""
    body = request([GOOD, GOOD])
    *parents, last = path
    place: Any = body
    for key in parents:
        place = place[key]
    place[last] = value
    return body


CONTENT: list[str | int] = ["messages", 0, "content"]
#: Fields that would have no effect; the refusal names them.
IGNORED = [
    ("stop", with_field(["stop"], ["Yes"])),
    ("temprature", with_field(["temprature"], 0)),
    ("name", with_field(["messages", 0, "name"], "me")),
    ("detail", with_field([*CONTENT, 0, "image_url", "detail"], "low")),
    ("cache_control", with_field([*CONTENT, 2, "cache_control"], {"type": "ephemeral"})),
]
BAD = [
    *[(field, body, 400, "invalid_request") for field, body in IGNORED],
    ("pixel bomb", request([GOOD, url_of(bomb())]), 400, "image_too_large"),
    ("slightly too large", request([GOOD, url_of(bomb(5_000))]), 400, "image_too_large"),
    ("truncated", request([GOOD, url_of(encode_png(Image.effect_noise((64, 64), 50))[:900])]), 400, "image"),
    ("not base64", request([GOOD, "data:image/png;base64,@@@"]), 400, "image_url"),
    ("remote", request([GOOD, "http://127.0.0.1:1/secret.png"]), 400, "image_url"),
    ("file", request([GOOD, "file:///etc/passwd"]), 400, "image_url"),
    ("three images", request([GOOD] * 3), 400, "image_count"),
    ("no image", request([]), 400, "image_count"),
    ("no text", request([GOOD, GOOD], None), 400, "text_count"),
    ("another model", request([GOOD, GOOD], model="gpt"), 404, "model_not_found"),
    ("unknown role", {**request([GOOD, GOOD]), "messages": [{"role": "tool", "content": []}]}, 400, "invalid_request"),
    ("sampling", request([GOOD, GOOD], temperature=0.7), 400, "invalid_request"),
    ("a number as text", request([GOOD, GOOD], max_tokens="1"), 400, "invalid_request"),
    ("top_logprobs without logprobs", request([GOOD, GOOD], logprobs=False), 400, "invalid_request"),
    ("two choices of tokens", request([GOOD, GOOD], logprob_token_ids=[1]), 400, "invalid_request"),
    ("too many logprobs", request([GOOD, GOOD], top_logprobs=21), 400, "invalid_request"),
    ("logprobs of a text", request([GOOD, GOOD], max_tokens=5), 400, "invalid_request"),
    ("no json", b"{", 400, "invalid_request"),
    ("no object", b"[1, 2]", 400, "invalid_request"),
    ("deep json", b"[" * 100_000, 400, "invalid_request"),
]


@pytest.mark.parametrize(("name", "body", "status", "code"), BAD, ids=[case[0] for case in BAD])
def test_bad_requests_are_refused_in_openais_shape(
    server_urls: list[str], name: str, body: bytes | dict[str, Any], status: int, code: str
) -> None:
    for url in server_urls:
        actual_status, answer = post(url, body)
        assert (actual_status, answer["error"]["code"]) == (status, code)
        assert answer["error"]["message"] and answer["error"]["type"] and len(json.dumps(answer)) < 3000
        assert name in answer["error"]["message"] or name not in dict(IGNORED)
    assert post(server_urls[1], BODY)[0] == 200  # both live


def test_a_huge_body_is_refused_without_being_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_BODY", 100_000)
    with served(FakeModel()) as (url, state):
        assert post(url, b" " * 150_000)[0] == 413
        assert post(url, iter([b" " * 60_000] * 3))[0] == 413  # chunked
        assert post(url, request([GOOD, GOOD]))[0] == 200
        assert 'paco_refused_total{cause="body_too_large"} 2.0' in state.metrics.text().decode()


def test_a_key_is_asked_for_where_one_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(FakeModel(), api_key="secret") as (url, _):
        assert post(url, request([GOOD, GOOD]))[0] == 401
        assert post(url, request([GOOD, GOOD]), Authorization="Bearer wrong")[0] == 401
        assert post(url, request([GOOD, GOOD]), Authorization="Bearer secret")[0] == 200
        monkeypatch.setenv("PACO_API_KEY", "secret")
        with RewardClient(url, NAME) as client:
            assert not client.score(queries(1))[0].failed


def test_a_request_that_crashes_the_model_is_a_failure_of_the_server(server_urls: list[str]) -> None:
    for url in server_urls:
        status, answer = post(url, request([GOOD, GOOD], "crash"))
        assert (status, answer["error"]["code"]) == (500, "model_failed")


def test_a_server_writes_no_number_that_json_does_not_know() -> None:
    with pytest.raises(ValueError, match="JSON"):
        http_server.as_json({"logprob": math.nan})


REFUSALS: list[tuple[dict[str, str], int, str]] = [
    ({"Host": "evil.example:8000"}, 403, "host"),  # DNS rebinding
    ({"Host": "localhost.evil.example"}, 403, "host"),
    ({"Host": "127.0.0.1@evil.example"}, 403, "host"),
    ({"Host": "[::1"}, 403, "host"),
    ({"Host": ""}, 403, "host"),
    ({"Origin": "https://evil.example"}, 403, "origin"),
    ({"Origin": "null"}, 403, "origin"),  # a sandboxed frame, a file
    ({"Origin": "http://127.0.0.1:1"}, 403, "origin"),  # another server on this machine
    ({"Content_Type": "text/plain"}, 415, "content_type"),  # what a page may send without asking
    ({"Content_Type": "multipart/form-data; boundary=application/json"}, 415, "content_type"),
    ({"Content_Type": ""}, 415, "content_type"),
]


@pytest.mark.parametrize(("headers", "status", "code"), REFUSALS)
def test_what_a_page_of_another_site_can_send_is_refused(
    server_urls: list[str], headers: dict[str, str], status: int, code: str
) -> None:
    num_requests = len(MODEL.requests)
    for url in server_urls:
        actual_status, answer, _ = call(url, CHAT, BODY, **headers)
        assert (actual_status, answer["error"]["code"]) == (status, code) and answer["error"]["message"]
    assert len(MODEL.requests) == num_requests


def test_what_our_own_programs_send_is_answered(server_urls: list[str]) -> None:
    status, body, _ = call(server_urls[0], "/v1/nothing")
    assert status == 404 and body["error"]["type"] == "invalid_request_error"
    assert call(server_urls[0], "/health")[1] == {"status": "ok", "model": NAME}
    for url in server_urls:
        port = url.rpartition(":")[2]
        for host in (f"127.0.0.1:{port}", f"LOCALHOST:{port}", "localhost", f"[::1]:{port}", "127.0.0.1:9000"):
            assert call(url, CHAT, BODY, Host=host)[0] == 200, host
        assert call(url, CHAT, BODY, Content_Type="application/json; charset=utf-8")[0] == 200
        page = {"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"}  # a page of this server
        assert call(url, CHAT, BODY, **page)[0] == 200
        for path in ("/health", "/metrics", "/v1/models"):
            assert call(url, path)[0] == 200  # Prometheus and probes send no Origin and no body
            assert call(url, path, Host="evil.example")[0] == 403
            assert call(url, path, Origin="https://evil.example")[0] == 403
    metrics = call(server_urls[0], "/metrics")[1]
    assert 'paco_requests_total{status="200"}' in metrics and "paco_pictures_decoded_total" in metrics


@pytest.mark.parametrize(
    ("listens", "host", "status"),
    [
        ("192.0.2.7", "192.0.2.7:8000", 200),
        ("Rewards.example", "rewards.example", 200),
        ("192.0.2.7", "localhost", 200),
        ("192.0.2.7", "evil.example", 403),
        ("0.0.0.0", "rewards.example:80", 200),  # it has names that it cannot know, and asks for a key
        ("::", "rewards.example:80", 200),
    ],
)
def test_the_name_that_a_server_was_given_is_its_own(listens: str, host: str, status: int) -> None:
    with listening(build_scoring_app(fake_server(FakeModel()), listens)) as url:
        assert call(url, "/health", Host=host)[0] == status


THEME = (
    'Given two subfigures generated based on the theme: "a red cat", do the two images maintain consistency '
    'in terms of style, logic and identity? Answer "Yes" and "No" first, and then provide detailed reasons.'
)
PICTURES = [url_of(encode_png(panel(number))) for number in (3, 4)]


def official() -> dict[str, Any]:
    """The arguments of `client.chat.completions.create` there."""
    body = request(PICTURES, THEME, temperature=0.0, max_completion_tokens=1, top_logprobs=20)
    return {name: value for name, value in body.items() if name != "max_tokens"}


@pytest.mark.parametrize("before", [0, 1])
def test_todays_openai_client_gets_a_score(server_urls: list[str], before: int) -> None:
    with openai.OpenAI(base_url=f"{server_urls[before]}/v1", api_key="none", max_retries=0, timeout=60) as client:
        assert [card.id for card in client.models.list()] == [NAME]
        answer = client.chat.completions.create(**official())
    generation_request = MODEL.requests[-1]
    assert (generation_request.max_tokens, generation_request.logprobs, generation_request.top) == (1, True, 20)
    assert [picture.tobytes() for picture in (generation_request.query.first, generation_request.query.second)] == [
        panel(n).tobytes() for n in (3, 4)
    ]
    first = answer.choices[0].logprobs.content[0].top_logprobs  # type: ignore[union-attr,index]
    shares = {entry.token: math.exp(entry.logprob) for entry in first}
    assert shares["Yes"] == pytest.approx(true_score(generation_request.query)) and answer.model == NAME
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    token_counts = answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens
    assert token_counts == (len(THEME), len("Yes"), len(THEME) + len("Yes"))


def test_both_names_of_the_longest_answer(server_urls: list[str]) -> None:
    question = {name: official()[name] for name in ("model", "messages", "temperature")}
    for limits, tokens in (
        ({"max_completion_tokens": 7}, 7),
        ({"max_tokens": 7}, 7),
        ({"max_tokens": 7, "max_completion_tokens": 9}, 9),
        ({"max_tokens": 7, "max_completion_tokens": None}, 7),
        ({}, 128),
        ({"max_completion_tokens": 512}, 512),
    ):
        assert post(server_urls[1], {**question, **limits})[0] == 200 and MODEL.requests[-1].max_tokens == tokens
    for limits in ({"max_completion_tokens": 0}, {"max_tokens": 513}, {"max_completion_tokens": 2, "logprobs": True}):
        status, answer = post(server_urls[1], {**question, **limits})
        assert status == 400 and "max" in answer["error"]["message"]
