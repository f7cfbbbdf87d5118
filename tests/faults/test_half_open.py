"""Connections that say nothing, or half a request: every server of the project closes them, and goes on answering."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest
import uvicorn

from paco_core.cli import play
from paco_core.data.annotation import server as annotation
from paco_core.io import connections, local_page
from paco_core.serving.engines.transformers_app import build_app
from paco_core.serving.servers.gateway import Gateway
from paco_core.serving.servers.gateway import build_app as build_gateway
from pipelines.webserver import __main__ as webserver
from tests.faults.verdicts import Ledger
from tests.support.annotation_world import make_world, open_study
from tests.support.serving_fakes import FakeModel, fake_server

LIMIT_S = 30.0
HEAD = b"POST /x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
HALF = {
    "nothing": b"", "half a line": b"GE", "half a head": HEAD, "half a body": HEAD + b"Content-Length: 9\r\n\r\n{",
    "half a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
}  # fmt: skip


def reward_server(_root: Path, bound: socket.socket) -> None:
    connections.serve(build_app(fake_server(FakeModel())), bound)


def gateway(_root: Path, bound: socket.socket) -> None:
    connections.serve(build_gateway(Gateway(dict, timeout_s=60)), bound)


def annotation_server(root: Path, bound: socket.socket) -> None:
    make_world(root)
    queue = open_study(root, annotators=1, overlap=1)
    annotation.serve(queue, bound, queue.store.close)


def play_server(root: Path, bound: socket.socket) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_page, "listen", lambda _port: bound)
        play.play(root, 0, browser=False)


def dagster_webserver(root: Path, bound: socket.socket) -> None:
    (root / "workspace.yaml").write_text("load_from: []\n")
    with pytest.MonkeyPatch.context() as patch, dg.DagsterInstance.local_temp(str(root)) as instance:
        patch.setattr(dg.DagsterInstance, "get", lambda: instance)
        patch.setattr(webserver, "_listening", lambda _host, _port: bound)
        webserver.serve(str(root / "workspace.yaml"), "127.0.0.1", 0, [], "", True)


SERVERS = [reward_server, gateway, annotation_server, play_server, dagster_webserver]


@pytest.mark.parametrize("serve", SERVERS, ids=lambda one: one.__name__)
def test_half_open_connections(
    project: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, serve: Callable[[Path, socket.socket], None]
) -> None:
    servers: list[uvicorn.Server] = []

    class Kept(uvicorn.Server):
        """So that the test can end it."""

        def __init__(self, config: uvicorn.Config) -> None:
            super().__init__(config)
            servers.append(self)

    monkeypatch.setattr(uvicorn, "Server", Kept)
    monkeypatch.setattr(connections.Punctual, "quiet_s", 0.3)
    bound = socket.create_server(("127.0.0.1", 0))
    address = bound.getsockname()
    thread = threading.Thread(target=serve, args=(project, bound), daemon=True)
    thread.start()
    try:
        opened = {what: socket.create_connection(address, timeout=LIMIT_S) for what in HALF}
        for what, connection in opened.items():
            connection.sendall(HALF[what])
        with ledger.row("half-open connection", serve.__name__.replace("_", " "), hostile=True) as row:
            for what, connection in opened.items():
                row.judge(what, None if closed(connection) else ("unclear", f"still open after {LIMIT_S:g} s"))
            with socket.create_connection(address, timeout=LIMIT_S) as good:
                good.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                answer = good.recv(12)
            row.judge("and a whole request", None if answer[:5] == b"HTTP/" else ("unclear", f"answered {answer!r}"))
    finally:
        for server in servers:
            server.should_exit = True
        thread.join(LIMIT_S)
        bound.close()


def closed(connection: socket.socket) -> bool:
    with connection:
        try:
            while connection.recv(1 << 12):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True
