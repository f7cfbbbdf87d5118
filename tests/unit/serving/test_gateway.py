"""Several models behind one port: each question reaches its model, and comes back as the model answered it."""

from __future__ import annotations

import http.client
import json
import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from paco_core.config.params import load
from paco_core.io.http_client import Patience
from paco_core.serving import http_server
from paco_core.serving.client import RewardClient
from paco_core.serving.servers import endpoint
from paco_core.serving.servers.gateway import Gateway, build_app, routes
from paco_core.serving.servers.registry import Registry
from tests.support.loopback import Loopback, Repeating
from tests.support.pictures import bomb
from tests.support.serving_fakes import (
    FakeModel,
    Scripted,
    completion,
    fake_launch,
    half,
    hang_up,
    listening,
    queries,
    reply,
    served,
    silence,
    true_score,
)
from tests.support.waiting import until
from tests.unit.serving.test_app import GOOD, JSON, post, request, url_of
from tests.unit.serving.test_faults import server_of

FIRST, SECOND, LOST = "paco-reward@111111111111", "paco-reward@222222222222", "paco-reward@000000000000"
GONE = "http://127.0.0.1:9"  # the discard port, where nobody listens


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[str, FakeModel, FakeModel]]:
    """A gateway before two living models and one whose server is gone."""
    first, second = FakeModel(), FakeModel()
    with served(first, name=FIRST) as (one, _), served(second, name=SECOND) as (other, _):
        where = {FIRST: one, SECOND: other, LOST: GONE}
        with listening(build_app(Gateway(lambda: where, timeout_s=60))) as url:
            yield url, first, second


def before(server: Scripted, timeout_s: float = 60, **settings: str) -> AbstractContextManager[str]:
    """A gateway before one server that follows a script."""
    return listening(build_app(Gateway(lambda: {FIRST: server.url}, timeout_s=timeout_s, **settings)))


def get(url: str, path: str, **headers: str) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def test_each_question_reaches_its_model_and_pictures_and_scores_are_unharmed(
    two: tuple[str, FakeModel, FakeModel],
) -> None:
    url, first, second = two
    asked = queries(20)
    for name, model, other in ((FIRST, first, second), (SECOND, second, first)):
        before = len(other.asks)
        with RewardClient(url, name) as client:
            scores = client.score(asked)
        assert [score.value for score in scores] == pytest.approx([true_score(query) for query in asked])
        sent = {query.first.tobytes() for query in asked}
        assert {ask.query.first.tobytes() for ask in model.asks} == sent and len(other.asks) == before


def test_answers_are_passed_on_byte_for_byte(two: tuple[str, FakeModel, FakeModel]) -> None:
    answer = completion(0.625, FIRST)
    with Scripted([reply(200, answer)], name=FIRST) as server, before(server) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        connection.request("POST", "/v1/chat/completions", json.dumps(request([GOOD, GOOD], model=FIRST)), JSON)
        assert connection.getresponse().read() == answer
        connection.close()


@pytest.mark.parametrize("at_once", [True, False])
def test_a_repeated_answer_does_not_reach_another_caller(at_once: bool) -> None:
    server = Loopback(type("Handler", (Repeating,), {"at_once": at_once}))
    with server, listening(build_app(Gateway(lambda: {FIRST: server.url}, timeout_s=60))) as url:
        bodies = [request([GOOD, GOOD], f"{n}", model=FIRST) for n in range(4)]
        assert [post(url, body) for body in bodies] == [(200, body) for body in bodies]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (request([GOOD, GOOD], model="gpt"), 404, "model_not_found"),
        (request([GOOD, GOOD], model="../gateway"), 404, "model_not_found"),
        (request([GOOD, GOOD], model=LOST), 503, "server_down"),
        (request([GOOD, GOOD], model=FIRST, temperature=2), 400, "invalid_request"),  # the model's own refusal
        (request([GOOD] * 3, model=FIRST), 400, "image_count"),
        (request([GOOD, url_of(bomb())], model=FIRST), 400, "image_too_large"),
        (request([GOOD, url_of(bomb(5_000))], model=FIRST), 400, "image_too_large"),
        (request([GOOD, "http://127.0.0.1:1/secret.png"], model=FIRST), 400, "image_url"),
        (request([GOOD, "file:///etc/passwd"], model=FIRST), 400, "image_url"),
        ({"model": FIRST, "messages": 3}, 400, "invalid_request"),
        ({"messages": []}, 400, "invalid_request"),
        (request([GOOD, GOOD], None, model=FIRST), 400, "text_count"),
        (b"{", 400, "invalid_request"),
        (b"[1]", 400, "invalid_request"),
        (b"[" * 100_000, 400, "invalid_request"),
    ],
)
def test_refusals_have_openais_shape(
    two: tuple[str, FakeModel, FakeModel], body: bytes | dict[str, object], status: int, code: str
) -> None:
    got, answer = post(two[0], body)
    assert (got, answer["error"]["code"]) == (status, code)
    assert answer["error"]["message"] and answer["error"]["type"]


def test_health_and_models_of_each(two: tuple[str, FakeModel, FakeModel]) -> None:
    url = two[0]
    status, all_of_them = get(url, "/health")
    states = {name: one["status"] for name, one in all_of_them["models"].items()}  # type: ignore[attr-defined]
    assert status == 503 and all_of_them["status"] == "degraded"
    assert states == {FIRST: "ok", SECOND: "ok", LOST: "down"}
    assert get(url, f"/health/{FIRST}")[0] == 200 and get(url, f"/health/{LOST}")[0] == 503
    assert get(url, "/health/other")[0] == 404
    cards = get(url, "/v1/models")[1]["data"]
    assert {card["id"] for card in cards} == {FIRST, SECOND}  # type: ignore[attr-defined]


@pytest.mark.parametrize("fault", [reply(500, b"oops"), half, hang_up])
def test_a_servers_fault_is_a_fault_and_no_answer(fault: object) -> None:
    """The client behind the gateway retries what it would retry without it."""
    good = reply(200, completion(0.75, FIRST))
    with (
        Scripted([fault, good], name=FIRST) as server,  # type: ignore[list-item]
        before(server) as url,
        RewardClient(url, FIRST, patience=Patience(2, 0.001)) as client,
    ):
        assert client.score(queries(1))[0].value == pytest.approx(0.75)
        assert server.asked == 2


def test_a_slow_server_is_a_time_out() -> None:
    with Scripted([silence], name=FIRST) as server, before(server, timeout_s=0.2) as url:
        got, answer = post(url, request([GOOD, GOOD], model=FIRST))
    assert (got, answer["error"]["code"]) == (504, "timeout")


def test_the_key_and_the_size_are_checked_before_anything_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_BODY", 100_000)
    answer = reply(200, completion(0.75, FIRST))
    with Scripted([answer], name=FIRST) as server, before(server, api_key="secret") as url:
        body = request([GOOD, GOOD], model=FIRST)
        assert post(url, body)[0] == post(url, body, Authorization="Bearer wrong")[0] == 401
        assert get(url, "/v1/models")[0] == get(url, "/metrics")[0] == 401
        assert post(url, b" " * 200_000, Authorization="Bearer secret")[0] == 413
        assert server.asked == 0
        assert post(url, body, Authorization="Bearer secret")[0] == 200


@pytest.mark.slow
def test_a_model_whose_server_died_may_come_again_and_an_unknown_one_is_unknown(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client takes 404 for final, and waits where a server is down."""
    monkeypatch.setattr(endpoint, "launch", fake_launch("serve"))
    serving = load(repository / "params.yaml").serving.model_copy(update={"start_timeout_s": 240})
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    name, registry = endpoint.served_name(endpoint.fingerprint(folder)), Registry(tmp_path)
    gateway = Gateway(lambda: routes(registry), known=registry.names, timeout_s=60)
    with listening(build_app(gateway)) as url:
        body = request([GOOD, GOOD], model=name)
        assert post(url, body)[1]["error"]["code"] == "model_not_found"
        endpoint.up(folder, serving, tmp_path)
        record = registry.living(name)
        assert record is not None and get(url, f"/health/{name}")[0] == 200
        os.kill(server_of(record.pid), signal.SIGKILL)
        until(lambda: registry.living(name) is None)
        assert _asked(url, body) == (503, "server_down", "2")
        assert get(url, f"/health/{name}")[0] == get(url, "/health")[0] == 503
        assert get(url, "/health")[1]["models"] == {name: {"status": "down", "url": None}}
        endpoint.up(folder, serving, tmp_path)
        assert get(url, f"/health/{name}")[0] == 200
        endpoint.down(tmp_path)
        assert _asked(url, body) == (503, "server_down", "2")
        assert get(url, "/health")[1]["models"] == {}, "what people stopped is not missed"
        assert get(url, f"/health/{name}")[0] == 503 and get(url, "/health/other")[0] == 404


def _asked(url: str, body: dict[str, object]) -> tuple[int, str, str | None]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), JSON)
    answer = connection.getresponse()
    code = json.loads(answer.read())["error"]["code"]
    connection.close()
    return answer.status, code, answer.getheader("Retry-After")


@pytest.mark.slow
def test_up_and_down_with_the_servers_of_the_project(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway finds servers that come after it, and outlives none of `paco serve down`."""
    monkeypatch.setattr(endpoint, "launch", fake_launch("serve"))
    serving = load(repository / "params.yaml").serving.model_copy(update={"start_timeout_s": 240})
    told = endpoint.gateway(serving, tmp_path)
    url = told.split(" at ")[1].split()[0]
    try:
        assert get(url, "/health")[1] == {"status": "degraded", "models": {}}
        names = []
        for number in range(2):
            folder = tmp_path / f"model-{number}"
            folder.mkdir()
            (folder / "config.json").write_text(f'{{"number": {number}}}')
            endpoint.up(folder, serving, tmp_path)
            names.append(endpoint.served_name(endpoint.fingerprint(folder)))
        cards = get(url, "/v1/models")[1]["data"]
        assert sorted(card["id"] for card in cards) == sorted(names)  # type: ignore[attr-defined]
        assert "already answers" in endpoint.gateway(serving, tmp_path)
        assert endpoint.status(tmp_path).count("until `paco serve down`") == 3
    finally:
        stopped = endpoint.down(tmp_path)
    assert stopped.count("stopped ") == 3
    with pytest.raises(OSError, match="refused"):
        get(url, "/health")
