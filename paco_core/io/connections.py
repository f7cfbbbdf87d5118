"""How our servers listen: a request has to arrive whole and in time, and its head is bounded.

uvicorn has a limit for connections that idle between two requests and none for a request that never ends: one byte
every now and then would keep a connection, and what was read of its body, for ever.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

QUIET_S = 10.0  # in which nothing arrives of a request that is not whole; also of the first one of a connection
ARRIVAL_S = 60.0  # from a request's first byte to its last, its wait for room (serving/budget.py) included
IDLE_S = 75.0  # between two requests
MAX_HEAD = 64 << 10  # bytes of request line and headers


class Punctual(HttpToolsProtocol):
    """uvicorn's protocol with time limits for each request's arrival, and for a connection that sends nothing."""

    quiet_s, arrival_s = QUIET_S, ARRIVAL_S
    _silence: asyncio.TimerHandle | None = None
    _arrival: asyncio.TimerHandle | None = None
    _head: int | None = 0  # bytes of the head so far; None while a body arrives

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            self._head += len(data)
        super().data_received(data)
        if self._silence is not None:
            self._listen()
        if self._head is not None and self._head > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response(f"The head of the request exceeds {MAX_HEAD} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_request()

    def on_headers_complete(self) -> None:
        self._head = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head = 0
        self._arrived()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._arrived()  # another protocol takes the connection over
        super().handle_websocket_upgrade()

    def _await_request(self) -> None:
        if self._arrival is None:
            self._arrival = self.loop.call_later(self.arrival_s, self.transport.close)
            self._listen()

    def _listen(self) -> None:
        """Wait for more of the request, from now on."""
        if self._silence is not None:
            self._silence.cancel()
        self._silence = self.loop.call_later(self.quiet_s, self._silent)

    def _silent(self) -> None:
        if self.flow.read_paused:  # it is this server that does not read on
            self._listen()
        else:
            self.transport.close()

    def _arrived(self) -> None:
        for timer in (self._silence, self._arrival):
            if timer is not None:
                timer.cancel()
        self._silence = self._arrival = None


def serve(app: Any, bound: socket.socket, *, websockets: bool = False, grace_s: int = 2) -> None:
    """Serve an ASGI application on a listening socket until Ctrl-C or SIGTERM.

    Args:
        websockets: whether a request may turn its connection into one, which has no limit of time.
        grace_s: seconds in which requests under way may end.
    """
    config = uvicorn.Config(
        app,
        http=Punctual,
        ws="auto" if websockets else "none",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=int(IDLE_S),
        timeout_graceful_shutdown=grace_s,
    )
    uvicorn.Server(config).run(sockets=[bound])
