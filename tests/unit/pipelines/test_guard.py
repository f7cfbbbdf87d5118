"""Requests from other web pages are rejected; requests from Dagster's own pages are not.

Each attack first succeeds against the plain webserver.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import httpx
import pytest
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster_webserver.app import create_app_from_workspace_process_context
from starlette.applications import Starlette
from starlette.testclient import TestClient
from starlette.types import Scope
from starlette.websockets import WebSocketDisconnect

from paco_pipelines.webserver.guard import guarded_app, refusal

HERE = "http://127.0.0.1:3000"
SOCKET = "ws://127.0.0.1:3000/graphql"
RUN = "6f0d3c1e-0000-4000-8000-000000000000"
DELETE = f'mutation {{ deleteRun(runId: "{RUN}") {{ __typename }} }}'
WATCH = {"type": "start", "id": "1", "payload": {"query": "subscription { locationStateChangeEvents { __typename } }"}}
EVIL = {"Origin": "http://evil.example"}


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        instance.add_run(dg.DagsterRun(job_name="costly", run_id=RUN, status=dg.DagsterRunStatus.SUCCESS))
        yield instance


def _client(instance: dg.DagsterInstance, *hosts: str, guarded: bool = True) -> Iterator[TestClient]:
    with WorkspaceProcessContext(instance, EmptyWorkspaceTarget()) as context:
        app: Starlette = guarded_app(context, hosts) if guarded else create_app_from_workspace_process_context(context)
        with TestClient(app, base_url=HERE) as client:
            yield client


@pytest.fixture
def client(instance: dg.DagsterInstance) -> Iterator[TestClient]:
    yield from _client(instance)


@pytest.fixture
def bare(instance: dg.DagsterInstance) -> Iterator[TestClient]:
    yield from _client(instance, guarded=False)


def image(client: TestClient) -> httpx.Response:
    """``<img src="http://127.0.0.1:3000/graphql?query=mutation...">``: no Origin comes with it."""
    return client.get("/graphql", params={"query": DELETE}, headers={"Accept": "image/avif,image/webp,*/*;q=0.8"})


def rebinding(client: TestClient) -> httpx.Response:
    """A name that now leads here: to the browser it is one page with the attacker's, so the Origin agrees."""
    headers = {"Host": "evil.example:3000", "Origin": "http://evil.example:3000"}
    return client.post("/graphql", json={"query": DELETE}, headers=headers)


def form(client: TestClient) -> httpx.Response:
    """A POST that needs no leave of ours: a form, or ``fetch`` without CORS."""
    headers = {**EVIL, "Content-Type": "text/plain"}
    return client.post("/graphql", params={"query": DELETE}, content="{}", headers=headers)


def disguised(client: TestClient) -> httpx.Response:
    """Sent without CORS's leave as well, and JSON to who looks for the word anywhere in the header."""
    headers = {"Content-Type": "text/plain; application/json"}
    return client.post("/graphql", content=json.dumps({"query": DELETE}), headers=headers)


ATTACKS = {image: 405, rebinding: 403, form: 403, disguised: 415}


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_what_the_bare_webserver_obeys_the_guarded_one_refuses(
    attack: Any, bare: TestClient, client: TestClient, instance: dg.DagsterInstance
) -> None:
    assert attack(client).status_code == ATTACKS[attack]
    assert [run.run_id for run in instance.get_runs()] == [RUN]
    assert attack(bare).json() == {"data": {"deleteRun": {"__typename": "DeletePipelineRunSuccess"}}}
    assert not instance.get_runs()


@pytest.mark.slow
def test_a_websocket_of_another_page(bare: TestClient, client: TestClient) -> None:
    with bare.websocket_connect(SOCKET, headers=EVIL) as socket:
        socket.send_json({"type": "connection_init"})
        assert socket.receive_json() == {"type": "connection_ack"}
    with pytest.raises(WebSocketDisconnect) as error, client.websocket_connect(SOCKET, headers=EVIL):
        pass
    assert error.value.code == 1008 and "evil.example" in error.value.reason
    rebound = {"Host": "evil.example:3000", "Origin": "http://evil.example:3000"}
    with pytest.raises(WebSocketDisconnect), client.websocket_connect(SOCKET, headers=rebound):
        pass


@pytest.mark.slow
def test_its_own_pages_and_programs_work(client: TestClient, instance: dg.DagsterInstance) -> None:
    same_origin = {"Origin": HERE}
    page = client.get("/", headers={"Accept": "text/html"})
    assert "<html" in page.text and page.headers["x-frame-options"] == "SAMEORIGIN"
    assert client.get("/server_info").status_code == 200
    assert client.get("/graphql?query={version}", headers={"Accept": "text/html,*/*"}).status_code == 200  # GraphiQL
    for headers in ({}, same_origin, {**same_origin, "Content-Type": "application/json; charset=utf-8"}):
        answer = client.post("/graphql", json={"query": "{ __typename }"}, headers=headers)
        assert answer.json() == {"data": {"__typename": "Query"}}
    assert client.post("/graphql", json={"query": DELETE}, headers=same_origin).status_code == 200
    assert not instance.get_runs()
    with client.websocket_connect(SOCKET, headers=same_origin) as socket:
        socket.send_json({"type": "connection_init"})
        assert socket.receive_json() == {"type": "connection_ack"}
        socket.send_json(WATCH)


def _scope(*headers: tuple[str, str], kind: str = "http", method: str = "GET", query: bytes = b"") -> Scope:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    return {"type": kind, "method": method, "path": "/graphql", "query_string": query, "headers": raw}


@pytest.mark.parametrize("host", ["localhost:3000", "LOCALHOST", "127.0.0.1:3100", "[::1]:3000", "dagster.example.org"])
def test_hosts_that_are_ours(host: str) -> None:
    hosts = {"localhost", "127.0.0.1", "::1", "dagster.example.org"}
    assert refusal(_scope(("Host", host)), hosts) is None
    for scheme in ("http", "https"):
        assert refusal(_scope(("Host", host), ("Origin", f"{scheme}://{host}"), kind="websocket"), hosts) is None


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Host", "")],
        [("Host", "127.0.0.1.evil.example")],
        [("Host", "localhost@evil.example")],
        [("Host", "localhost"), ("Host", "evil.example")],
        [("Host", "localhost:3000"), ("Origin", "null")],
        [("Host", "localhost:3000"), ("Origin", "http://localhost:8888")],
        [("Host", "localhost:3000"), ("Origin", "file://localhost:3000")],
        [("Host", "localhost"), ("Origin", "http://localhost"), ("Origin", "http://evil.example")],
    ],
)
def test_what_is_not_ours(headers: list[tuple[str, str]]) -> None:
    for kind in ("http", "websocket"):
        response = refusal(_scope(*headers, kind=kind), {"localhost", "127.0.0.1", "::1"})
        assert response is not None and response.status == 403


def test_a_deployment_names_its_hosts(instance: dg.DagsterInstance) -> None:
    for client in _client(instance, "Dagster.example.org"):
        there = {"Host": "dagster.example.org", "Origin": "https://dagster.example.org"}
        assert client.post("/graphql", json={"query": "{ version }"}, headers=there).status_code == 200
        elsewhere = {**there, "Origin": "https://www.example.org"}
        assert client.post("/graphql", json={"query": "{ version }"}, headers=elsewhere).status_code == 403
