"""HTTP to one server that answers JSON: reward models, chat models, scorers.

Each request uses a new connection and has one time limit. Only failures that another try can cure are retried.
HTTP/1.1 answers carry no id: on a reused connection, a late or repeated answer to the last request would be read as the
answer to the next one. httpx has this fault too, unless it keeps no connection (``max_keepalive_connections=0``).
A new connection costs a reward query about 0.1 ms.
"""

from __future__ import annotations

import http.client
import json
import logging
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal
from urllib.parse import urlsplit

from paco_core.io.files import DataError
from paco_core.io.secrets import add_secret, one_line
from paco_core.io.timed_http import TimedConnection, connect

MAX_ANSWER = 8 << 20
MAX_PAUSE_S = 30.0  # a server may ask for a longer one; it is asked again after this
DROPPED = (ConnectionError, http.client.HTTPException)
NO_SERVER = (502, 503)  # what a gateway says while the server behind it is down, and a server that is loading
BUSY = (408, 409, 429)  # and 5xx: another try may go well
log = logging.getLogger("paco.http")


class RequestFailed(Exception):
    """A request came to nothing; the text is its cause, one line without secrets.

    Attributes:
        kind: no connection, none because nothing listens there ("refused"), no answer in time, a status other than 200,
            or an answer that is no JSON object.
        down: no server answered, or it says that it cannot serve now.
        retry_after_s: seconds that the server asks to wait before another try.
    """

    def __init__(
        self,
        cause: str,
        kind: Literal["connection", "refused", "time", "status", "answer"],
        *,
        status: int | None = None,
        down: bool = False,
        retry_after_s: float = 0.0,
    ) -> None:
        self.cause = one_line(cause)
        super().__init__(self.cause)
        self.kind, self.status, self.down, self.retry_after_s = kind, status, down, retry_after_s

    @property
    def is_busy(self) -> bool:
        """Whether the server answered that another try may go well."""
        return self.status is not None and (self.status in BUSY or self.status >= 500)


@dataclass(frozen=True)
class Patience:
    """How long to go on: at most ``retries`` more tries; while the server is down, until ``wait_s`` is over.

    ``budget_s``: seconds for all tries of a request and the pauses between them; no try begins that cannot end in it.
    ``when_late``: try again, too, when no answer came in time.
    """

    retries: int = 4
    backoff_s: float = 0.25
    wait_s: float = 0.0
    budget_s: float = math.inf
    when_late: bool = False

    def pause(self, attempt: int, at_least_s: float = 0.0) -> float:
        """Seconds before try number ``attempt`` + 1: doubling, with jitter so that callers spread out.

        Args:
            at_least_s: what the server asked for; heeded up to :data:`MAX_PAUSE_S`.
        """
        own = min(8.0, self.backoff_s * 2**attempt) * (0.5 + random.random())
        return max(own, min(at_least_s, MAX_PAUSE_S))


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    secure: bool
    host: str
    port: int | None
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Address:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise DataError(f"server address {url!r}: expected http://host:port")
        return cls(parts.scheme == "https", parts.hostname, parts.port, parts.path.rstrip("/"))


class HttpClient:
    """Requests to one server from any number of threads.

    Args:
        timeout_s: seconds for one try of a request, from connecting to the last byte of the answer.
        locate: returns where the server is now, or None while it is nowhere; asked when it is down, so that a
            server which was started again on another port is found.
        through_proxy: go through the proxy that ``https_proxy`` or ``http_proxy`` names, unless ``no_proxy`` lists the
            host. A server of this project's own is asked directly.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float,
        patience: Patience,
        api_key: str | None = None,
        locate: Callable[[], str | None] | None = None,
        *,
        through_proxy: bool = False,
    ) -> None:
        self.url, self._timeout, self._patience, self._locate = url.rstrip("/"), timeout_s, patience, locate
        self._address, self._through_proxy = Address.parse(url), through_proxy
        self._headers = {"Content-Type": "application/json", "User-Agent": "paco", "Connection": "close"}
        if api_key:
            add_secret(api_key)
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._connections: set[TimedConnection] = set()
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._warned_down = False
        self.retries = 0

    def _once(
        self, method: str, path: str, body: bytes | None, seconds: float
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        """Status, body and headers of one answer."""
        address = self._address
        connection = connect(address.secure, address.host, address.port, through_proxy=self._through_proxy)
        with self._lock:
            self._connections.add(connection)
        try:
            connection.start(seconds)
            target = f"{connection.origin}{address.prefix}{path}"
            connection.request(method, target, body, {**self._headers, **connection.proxy_headers})
            if self._closed.is_set():  # from here on `interrupt` sees the socket
                raise RequestFailed("interrupted", "connection")
            response = connection.getresponse()
            data = response.read(MAX_ANSWER + 1)
            if len(data) > MAX_ANSWER:
                raise RequestFailed(f"the answer exceeds {MAX_ANSWER} bytes", "answer")
            if response.length:  # a read with a limit does not notice by itself
                raise http.client.IncompleteRead(data, response.length)
            return response.status, data, response.headers
        finally:
            connection.close()
            with self._lock:
                self._connections.discard(connection)

    def call(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        """The JSON object that the server answers.

        Retried: status 408, 409, 429 and 5xx, not before ``Retry-After`` is over, and dropped connections. Not
        retried: other statuses, time-outs (but see ``Patience.when_late``), answers that are no JSON. While the server
        is down, tries go on until ``Patience.wait_s`` is over. Nothing goes on for longer than ``Patience.budget_s``.

        Raises:
            RequestFailed: with the cause.
        """
        attempt, started = 0, time.monotonic()
        while not self._closed.is_set():
            seconds = min(self._timeout, self._patience.budget_s - (time.monotonic() - started))
            try:
                return self._answer(*self._once(method, path, body, seconds))
            except (RequestFailed, *DROPPED, OSError) as error:
                failure, again = _judge(error, seconds, self._patience)
            pause = self._patience.pause(attempt, failure.retry_after_s)
            spent = time.monotonic() - started
            waiting = failure.down and spent < self._patience.wait_s
            late = spent + pause >= self._patience.budget_s
            if late or not again or (attempt >= self._patience.retries and not waiting):
                raise failure from None
            if failure.down:
                self._locate_again(waiting)
            with self._lock:
                self.retries += 1
            self._closed.wait(pause)
            attempt += 1
        raise RequestFailed("interrupted", "connection")

    def _locate_again(self, waiting: bool) -> None:
        """The server is down: go where it is now, if it is anywhere; say once that all is waiting."""
        url = self._locate() if self._locate is not None else None
        with self._lock:
            if url is not None and url.rstrip("/") != self.url:
                self.url, self._address = url.rstrip("/"), Address.parse(url)
            elif waiting and not self._warned_down:
                self._warned_down = True
                log.warning("%s is down; waiting for it, %g s at most", self.url, self._patience.wait_s)

    def _answer(self, status: int, data: bytes, headers: http.client.HTTPMessage) -> dict[str, Any]:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):  # the latter: nested too deeply
            value = None
        if status != http.client.OK:
            moved = headers.get("Location") if 300 <= status < 400 else None
            message = f"it redirects to {one_line(moved)}; give that address" if moved else _message(value)
            cause = f"HTTP {status}{': ' + message if message else ''}"
            pause = _seconds(headers.get("Retry-After"))
            raise RequestFailed(cause, "status", status=status, down=status in NO_SERVER, retry_after_s=pause)
        if not isinstance(value, dict):
            raise RequestFailed("the answer is not a JSON object", "answer")
        return value

    def interrupt(self) -> None:
        """Fail the requests that wait for an answer now, and all later ones."""
        self._closed.set()
        with self._lock:
            for connection in self._connections:
                connection.interrupt()


def _message(answer: Any) -> str:
    """What an error says: in OpenAI's shape, or as a text under one of the usual keys."""
    if not isinstance(answer, dict):
        return ""
    error = answer.get("error")
    said = error.get("message") if isinstance(error, dict) else error or answer.get("message") or answer.get("detail")
    return said if isinstance(said, str) else ""


def _seconds(retry_after: str | None) -> float:
    """The seconds of a ``Retry-After``, which may also be a date; 0 without one, and for what is neither."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    try:
        date = parsedate_to_datetime(text)
        return max(0.0, (date - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):  # no date; one without a zone; one beyond the calendar
        return 0.0


def _judge(error: Exception, timeout_s: float, patience: Patience) -> tuple[RequestFailed, bool]:
    """What a failure is called, and whether another try may help."""
    if isinstance(error, RequestFailed):
        return error, error.is_busy
    if isinstance(error, TimeoutError):
        return RequestFailed(f"no answer within {timeout_s:g} s", "time"), patience.when_late
    if isinstance(error, ConnectionRefusedError):
        return RequestFailed("connection refused", "refused", down=True), True
    if isinstance(error, DROPPED):
        return RequestFailed("connection dropped", "connection", down=True), True
    return RequestFailed(f"connection failed ({error})", "connection"), False
