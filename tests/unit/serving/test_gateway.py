"""Several models behind one port: each question reaches its model, and comes back as the model answered it."""

from __future__ import annotations

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
from paco_core.serving.servers.gateway import Gateway, build_gateway_app
from paco_core.serving.servers.registry import Registry
from tests.support.loopback import Loopback, Repeating, hang_up
from tests.support.serving_fakes import (
    FakeModel,
    Scripted,
    call,
    completion,
    fake_launch,
    half,
    listening,
    queries,
    reply,
    served,
    silence,
    true_score,
)
from tests.support.waiting import until
from tests.unit.serving.test_app import GOOD, post, request
from tests.unit.serving.test_faults import server_of

FIRST, SECOND, LOST = "paco-reward@111111111111", "paco-reward@222222222222", "paco-reward@000000000000"
UNREACHABLE = "http://127.0.0.1:9"  # the discard port, where nobody listens


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[str, FakeModel, FakeModel]]:
    """A gateway before two living models and one whose server is gone."""
    first, second = FakeModel(), FakeModel()
    with served(first, name=FIRST) as (first_url, _), served(second, name=SECOND) as (second_url, _):
        addresses = {FIRST: first_url, SECOND: second_url, LOST: UNREACHABLE}
        with listening(build_gateway_app(Gateway(lambda: addresses, timeout_s=60))) as url:
            yield url, first, second


def before(server: Scripted, timeout_s: float = 60, **settings: str) -> AbstractContextManager[str]:
    """A gateway before one server that follows a script."""
    return listening(build_gateway_app(Gateway(lambda: {FIRST: server.url}, timeout_s=timeout_s, **settings)))


def test_each_question_reaches_its_model_and_pictures_and_scores_are_unharmed(
    two: tuple[str, FakeModel, FakeModel],
) -> None:
    url, first, second = two
    pair_queries = queries(20)
    for name, model, other in ((FIRST, first, second), (SECOND, second, first)):
        before = len(other.requests)
        with RewardClient(url, name) as client:
            scores = client.score(pair_queries)
        assert [score.value for score in scores] == pytest.approx([true_score(query) for query in pair_queries])
        expected_images = {query.first.tobytes() for query in pair_queries}
        assert {request.query.first.tobytes() for request in model.requests} == expected_images and len(
            other.requests
        ) == before


@pytest.mark.slow
def test_answers_are_passed_on_as_they_are_or_late() -> None:
    answer = completion(0.625, FIRST)
    with Scripted([reply(200, answer), silence], name=FIRST) as server, before(server, timeout_s=2) as url:
        assert post(url, request([GOOD, GOOD], model=FIRST)) == (200, json.loads(answer))
        status, refusal = post(url, request([GOOD, GOOD], model=FIRST))
    assert (status, refusal["error"]["code"]) == (504, "timeout")


@pytest.mark.parametrize("at_once", [True, False])
def test_a_repeated_answer_does_not_reach_another_caller(at_once: bool) -> None:
    server = Loopback(type("Handler", (Repeating,), {"at_once": at_once}))
    with server, listening(build_gateway_app(Gateway(lambda: {FIRST: server.url}, timeout_s=60))) as url:
        bodies = [request([GOOD, GOOD], f"{n}", model=FIRST) for n in range(4)]
        assert [post(url, body) for body in bodies] == [(200, body) for body in bodies]


def test_what_nobody_serves_or_asks_is_refused(two: tuple[str, FakeModel, FakeModel]) -> None:
    for body, status, code in (
        (request([GOOD, GOOD], model="../gateway"), 404, "model_not_found"),
        (request([GOOD, GOOD], model=LOST), 503, "server_down"),
        ({"messages": []}, 400, "invalid_request"),
        ({"model": FIRST, "messages": 3}, 400, "invalid_request"),
    ):
        actual_status, answer = post(two[0], body)
        assert (actual_status, answer["error"]["code"]) == (status, code)


def test_health_and_models_of_each(two: tuple[str, FakeModel, FakeModel]) -> None:
    url = two[0]
    status, health, _ = call(url, "/health")
    assert status == 503 and health["status"] == "degraded"
    assert {name: state["status"] for name, state in health["models"].items()} == {
        FIRST: "ok",
        SECOND: "ok",
        LOST: "down",
    }
    assert [call(url, f"/health/{name}")[0] for name in (FIRST, LOST, "other")] == [200, 503, 404]
    assert {card["id"] for card in call(url, "/v1/models")[1]["data"]} == {FIRST, SECOND}


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
        assert server.num_requests == 2


def test_the_key_and_the_size_are_checked_before_anything_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_BODY", 100_000)
    answer = reply(200, completion(0.75, FIRST))
    with Scripted([answer], name=FIRST) as server, before(server, api_key="secret") as url:
        body = request([GOOD, GOOD], model=FIRST)
        assert post(url, body)[0] == post(url, body, Authorization="Bearer wrong")[0] == 401
        assert call(url, "/v1/models")[0] == call(url, "/metrics")[0] == 401
        assert post(url, b" " * 200_000, Authorization="Bearer secret")[0] == 413
        assert server.num_requests == 0
        assert post(url, body, Authorization="Bearer secret")[0] == 200


@pytest.mark.slow
def test_the_gateway_follows_the_servers_of_the_project(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client takes 404 for final, and waits where a server is down: a model whose server died may come again."""
    monkeypatch.setattr(endpoint, "launch", fake_launch("serve"))
    serving = load(repository / "params.yaml").serving.model_copy(update={"start_timeout_s": 240})
    folders = [tmp_path / f"model-{number}" for number in range(2)]
    for number, folder in enumerate(folders):
        folder.mkdir()
        (folder / "config.json").write_text(f'{{"number": {number}}}')
    names, registry = (
        [endpoint.served_name(endpoint.model_fingerprint(folder)) for folder in folders],
        Registry(tmp_path),
    )
    url = endpoint.gateway(serving, tmp_path).split(" at ")[1].split()[0]
    bodies = [request([GOOD, GOOD], model=name) for name in names]

    def refusal(body: dict[str, object]) -> tuple[int, str, str | None]:
        status, answer, retry_after = call(url, body=body)
        return status, answer["error"]["code"], retry_after

    try:
        assert call(url, "/health")[1] == {"status": "degraded", "models": {}}
        for folder, body in zip(folders, bodies, strict=True):
            assert refusal(body) == (404, "model_not_found", None)
            endpoint.up(folder, serving, tmp_path)
        assert endpoint.gateway(serving, tmp_path).count(url) == 1, "there is one already"
        record = registry.living(names[0])
        assert record is not None and call(url, "/health")[0] == 200
        os.kill(server_of(record.pid), signal.SIGKILL)
        until(lambda: registry.living(names[0]) is None)
        assert refusal(bodies[0]) == (503, "server_down", "2")
        assert call(url, "/health")[1]["models"][names[0]] == {"status": "down", "url": None}
        endpoint.up(folders[0], serving, tmp_path)
        assert call(url, f"/health/{names[0]}")[0] == 200
        endpoint.down(tmp_path, names[1])
        assert refusal(bodies[1]) == (503, "server_down", "2")
        assert [*call(url, "/health")[1]["models"]] == names[:1], "what people stopped is not missed"
    finally:
        stopped = endpoint.down(tmp_path)
    assert stopped.count("stopped ") == 2
    with pytest.raises(OSError, match="refused"):
        call(url, "/health")
