"""HTTP connections with one limit of time for a whole request.

The limit of a socket is one for each single send or read: a server that sends a byte now and then is never late.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Callable
from typing import Any


class TimedConnection(http.client.HTTPConnection):
    """What is left of the time is given to each step: connecting, each send, and each read."""

    def start(self, seconds: float) -> None:
        """Begin a request that may take so long, all in all."""
        self._deadline = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds left.

        Raises:
            TimeoutError: when there are none.
        """
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    def connect(self) -> None:
        self.timeout = self.left()
        super().connect()

    def send(self, data: Any) -> None:
        if self.sock is not None:
            self.sock.settimeout(self.left())
        super().send(data)

    # A method where the library has a class: it is called in the same way.
    def response_class(  # type: ignore[override]
        self, sock: socket.socket, *args: Any, **settings: Any
    ) -> http.client.HTTPResponse:
        """The answer, read within what is left."""
        response = http.client.HTTPResponse(sock, *args, **settings)
        response.fp = io.BufferedReader(_Timed(response.fp.detach(), sock, self.left))  # type: ignore[assignment]
        return response


class SecureTimedConnection(TimedConnection, http.client.HTTPSConnection):
    """The same over TLS."""


class _Timed(io.RawIOBase):
    """Reads of a socket, each within what is left of the request's time."""

    def __init__(self, raw: Any, sock: socket.socket, left: Callable[[], float]) -> None:
        self._raw, self._sock, self._left = raw, sock, left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._left())
        found: int | None = self._raw.readinto(buffer)
        return found

    def close(self) -> None:
        self._raw.close()
        super().close()
