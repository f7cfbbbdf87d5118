"""A small HTTP server on 127.0.0.1, in a thread, for tests that need somebody at the other end."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Quiet(BaseHTTPRequestHandler):
    """Keeps connections, prints nothing, and does not mind a client that ends early."""

    protocol_version = "HTTP/1.1"

    def reply(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle()

    def log_message(self, *args: Any) -> None:
        pass


class Repeating(Quiet):
    """Answers a request with its own body, and sends that answer a second time: ``at_once``, or when the next request
    arrives on the connection."""

    at_once = True
    last = b""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        self.wfile.write(answer * 2 if self.at_once else self.last + answer)
        self.last = answer


class Loopback(ThreadingHTTPServer):
    """Listens on a free port as soon as it is made; answers inside its ``with`` block."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()
        self.server_close()


Step = Callable[[Quiet], None]


@dataclass(frozen=True)
class Raw:
    """A reply as it goes over the wire."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    def __call__(self, handler: Quiet) -> None:
        handler.reply(self.status, self.body, {"Content-Type": "application/json", **self.headers})


def hang_up(handler: Quiet) -> None:
    """Close without an answer."""
    handler.close_connection = True


class JsonServer(Loopback):
    """``answer(body, n)`` replies to the n-th POST, None hangs up; keeps the requests' bodies, paths and keys.

    Args:
        path: the only one that is answered; any when None.
        listing: what is answered to GET.
    """

    def __init__(
        self, answer: Callable[[Any, int], Step | None], *, path: str | None = None, listing: bytes = b"{}"
    ) -> None:
        state, lock = self, threading.Lock()
        self.bodies: list[Any] = []
        self.paths: set[str] = set()
        self.keys: set[str | None] = set()
        self.most_at_once = self._now = 0

        class Handler(Quiet):
            def do_GET(self) -> None:
                self.reply(200, listing)

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                if not data:
                    return  # the client was killed
                body = json.loads(data)
                assert path in (None, self.path)
                with lock:
                    number = len(state.bodies)
                    state.bodies.append(body)
                    state.paths.add(self.path)
                    state.keys.add(self.headers["Authorization"])
                    state._now += 1
                    state.most_at_once = max(state.most_at_once, state._now)
                try:
                    step = answer(body, number)
                finally:
                    with lock:
                        state._now -= 1
                (step or hang_up)(self)

        super().__init__(Handler)
