"""HTTP connections with one limit of time for a whole request, through a proxy where one is asked for.

The limit of a socket is one for each single send or read: a server that sends a byte now and then is never late.
"""

from __future__ import annotations

import base64
import http.client
import io
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import certifi

from paco_core.io.files import DataError
from paco_core.io.same_site import is_loopback


class TimedConnection(http.client.HTTPConnection):
    """What is left of the time is given to each step: connecting, each send, and each read.

    Attributes:
        origin: goes before a request's path; a proxy is given the whole address.
        proxy_headers: what a proxy asks for with each request.
    """

    timeout: float | None
    origin = ""
    proxy_headers: dict[str, str] = {}  # noqa: RUF012, replaced as a whole
    _deadline = 0.0
    _open: socket.socket | None = None  # the library forgets the socket before it reads the answer

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
        self._open = self.sock

    def send(self, data: Any) -> None:
        if self.sock is not None:
            self.sock.settimeout(self.left())
        super().send(data)

    def interrupt(self) -> None:
        """Wake the thread that waits for an answer, with an error; it closes the connection."""
        if self._open is not None:
            with suppress(OSError):  # the other end was faster
                self._open.shutdown(socket.SHUT_RDWR)

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


def connect(secure: bool, host: str, port: int | None, *, through_proxy: bool) -> TimedConnection:
    """A connection that opens with its first request.

    Raises:
        DataError: when the environment names a proxy of a kind that is not known.
    """
    proxy = _proxy("https" if secure else "http", host) if through_proxy else None
    where = (host, port) if proxy is None else (str(proxy.hostname), proxy.port or 80)
    made = SecureTimedConnection(*where, context=_trusted()) if secure else TimedConnection(*where)
    if proxy is None:
        return made
    if secure:
        made.set_tunnel(host, port, _credentials(proxy))
    else:
        made.origin = f"http://{host}" + ("" if port is None else f":{port}")
        made.proxy_headers = _credentials(proxy)
    return made


def _proxy(scheme: str, host: str) -> SplitResult | None:
    """The proxy that the environment names for a host: ``https_proxy``, ``http_proxy``, ``all_proxy``, ``no_proxy``."""
    proxies = getproxies()
    url = proxies.get(scheme) or proxies.get("all")
    if not url or is_loopback(host) or proxy_bypass(host):
        return None
    found = urlsplit(url if "://" in url else f"http://{url}")
    if found.scheme != "http" or not found.hostname:
        place = f"{found.scheme}://{found.hostname or ''}"  # without its password
        raise DataError(f"the proxy for {scheme} ({place}): expected http://host:port; see https_proxy and no_proxy")
    return found


def _credentials(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


@cache
def _trusted() -> ssl.SSLContext:
    """Who is trusted: the system's authorities (or those of ``SSL_CERT_FILE``), and Mozilla's, which an image of a
    container may lack."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context
