"""The embedded server refuses what it should, with the right status, and lives on."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from paco_core.io.shards import encode_png
from paco_core.serving import http_server
from paco_core.serving.client import RewardClient
from paco_core.serving.servers import gateway
from tests.support.pictures import bomb
from tests.support.serving_fakes import NAME, FakeModel, listening, panel, queries, served


def url_of(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


GOOD = url_of(encode_png(panel(1)))
JSON = {"Content-Type": "application/json"}


def request(images: list[str], text: str | None = "Same?", **more: Any) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in images]
    if text is not None:
        content.append({"type": "text", "text": text})
    body = {"model": NAME, "messages": [{"role": "user", "content": content}], "max_tokens": 1, "logprobs": True}
    return {**body, "top_logprobs": 5, **more}


def post(url: str, body: bytes | dict[str, Any] | Iterator[bytes], **headers: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    connection.request("POST", "/v1/chat/completions", data, {**JSON, **headers})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with served(FakeModel()) as (url, _):
        yield url


BAD = [
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
    ("a field without effect", request([GOOD, GOOD], stop=["Yes"]), 400, "invalid_request"),
    ("a number as text", request([GOOD, GOOD], max_tokens="1"), 400, "invalid_request"),
    ("top_logprobs without logprobs", request([GOOD, GOOD], logprobs=False), 400, "invalid_request"),
    ("two choices of tokens", request([GOOD, GOOD], logprob_token_ids=[1]), 400, "invalid_request"),
    ("too many logprobs", request([GOOD, GOOD], top_logprobs=21), 400, "invalid_request"),
    ("logprobs of a text", request([GOOD, GOOD], max_tokens=5), 400, "invalid_request"),
    ("no json", b"{", 400, "invalid_request"),
    ("no object", b"[1, 2]", 400, "invalid_request"),
    ("deep json", b"[" * 100_000, 400, "invalid_request"),
]


@pytest.mark.parametrize(("body", "status", "code"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_requests_are_refused_in_openais_shape(
    server: str, body: bytes | dict[str, Any], status: int, code: str
) -> None:
    got, answer = post(server, body)
    assert (got, answer["error"]["code"]) == (status, code)
    assert answer["error"]["message"] and len(json.dumps(answer)) < 3000
    assert post(server, request([GOOD, GOOD]))[0] == 200  # the server is alive


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


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["stop"], ["Yes"]),
        (["logit_bias"], {"5": 100}),
        (["chat_template"], "{{ messages }}"),
        (["temprature"], 0),
        (["response_format"], {"type": "json_object"}),
        (["stream_options"], {"include_usage": True}),
        (["messages", 0, "name"], "me"),
        ([*CONTENT, 0, "image_url", "detail"], "low"),
        ([*CONTENT, 1, "image_url", "size"], 64),
        ([*CONTENT, 2, "cache_control"], {"type": "ephemeral"}),
    ],
)
@pytest.mark.parametrize("behind", ["server", "gateway"])
def test_a_field_that_would_be_ignored_is_refused_by_its_name(
    server: str, behind: str, path: list[str | int], value: object
) -> None:
    if behind == "server":
        status, answer = post(server, with_field(path, value))
    else:
        with listening(gateway.build_app(gateway.Gateway(lambda: {NAME: server}, timeout_s=60))) as url:
            status, answer = post(url, with_field(path, value))
    assert (status, answer["error"]["code"]) == (400, "invalid_request")
    assert str(path[-1]) in answer["error"]["message"]


def test_a_huge_body_is_refused_without_being_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_BODY", 100_000)
    with served(FakeModel()) as (url, state):
        assert post(url, b" " * 150_000)[0] == 413
        assert post(url, iter([b" " * 60_000] * 3))[0] == 413  # chunked
        assert post(url, request([GOOD, GOOD]))[0] == 200
        assert 'paco_refused_total{cause="body_too_large"} 2.0' in state.metrics.text().decode()


def test_the_answer_has_openais_shape(server: str) -> None:
    status, answer = post(server, request([GOOD, GOOD]))
    choice = answer["choices"][0]
    assert status == 200 and answer["object"] == "chat.completion" and answer["model"] == NAME
    assert choice["message"]["role"] == "assistant" and choice["finish_reason"] == "length"
    first = choice["logprobs"]["content"][0]
    assert {t["token"] for t in first["top_logprobs"]} == {"Yes", "No"} and first["bytes"] == list(b"Yes")


def test_a_request_that_crashes_the_model_spares_its_neighbours() -> None:
    model = FakeModel()
    with served(model) as (url, _), RewardClient(url, NAME) as client:
        client._http._patience = type(client._http._patience)(retries=0)
        scores = client.score([*queries(10), *queries(1, "crash")])
    assert [s.failed for s in scores] == [False] * 10 + [True]


def test_a_key_is_asked_for_where_one_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(FakeModel(), api_key="secret") as (url, _):
        assert post(url, request([GOOD, GOOD]))[0] == 401
        assert post(url, request([GOOD, GOOD]), Authorization="Bearer wrong")[0] == 401
        assert post(url, request([GOOD, GOOD]), Authorization="Bearer secret")[0] == 200
        monkeypatch.setenv("PACO_API_KEY", "secret")
        with RewardClient(url, NAME) as client:
            assert not client.score(queries(1))[0].failed


def test_models_health_metrics_and_unknown_paths() -> None:
    with served(FakeModel()) as (url, _):
        with RewardClient(url, NAME) as client:
            client.score(queries(4))
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)

        def get(path: str) -> tuple[int, str]:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()

        assert json.loads(get("/v1/models")[1])["data"][0]["id"] == NAME
        assert json.loads(get("/health")[1]) == {"status": "ok", "model": NAME}
        metrics = get("/metrics")[1]
        assert 'paco_requests_total{status="200"} 4.0' in metrics and "paco_pictures_decoded_total 8.0" in metrics
        status, body = get("/v1/nothing")
        assert status == 404 and json.loads(body)["error"]["type"] == "invalid_request_error"
        connection.close()
