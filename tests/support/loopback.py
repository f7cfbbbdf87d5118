"""A small HTTP server on 127.0.0.1, in a thread, for tests that need somebody at the other end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
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
