"""HTTP to one server: a kept-alive connection a thread, retries where they help and nowhere else."""

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
from typing import Any
from urllib.parse import urlsplit

from paco_core.io.files import DataError
from paco_core.serving.timed import SecureTimedConnection, TimedConnection

API_KEY = "PACO_API_KEY"  # environment variable; servers and clients read the same one
MAX_ANSWER = 8 << 20
MAX_PAUSE_S = 30.0  # a server may ask for a longer one; it is asked again after this
DROPPED = (ConnectionError, http.client.HTTPException)
NO_SERVER = (502, 503)  # what a gateway says while the server behind it is down, and a server that is loading
log = logging.getLogger("paco.serving")


class RequestFailed(Exception):
    """A request came to nothing; the text is its cause.

    Attributes:
        down: no server answered, or it says that it cannot serve now.
        retry_after_s: seconds that the server asks to wait before another try.
    """

    def __init__(
        self, cause: str, *, status: int | None = None, down: bool = False, retry_after_s: float = 0.0
    ) -> None:
        super().__init__(cause)
        self.cause, self.status, self.down, self.retry_after_s = cause, status, down, retry_after_s


@dataclass(frozen=True)
class Patience:
    """How long to go on: at most ``retries`` more tries; while the server is down, until ``wait_s`` is over.

    ``budget_s``: seconds for all tries of a request and the pauses between them; no try begins that cannot end in it.
    """

    retries: int = 4
    backoff_s: float = 0.25
    wait_s: float = 0.0
    budget_s: float = math.inf

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

    def connect(self) -> TimedConnection:
        return (SecureTimedConnection if self.secure else TimedConnection)(self.host, self.port)


class Transport:
    """Requests to one server from any number of threads.

    Args:
        timeout_s: seconds for one try of a request, from connecting to the last byte of the answer.
        locate: returns where the server is now, or None while it is nowhere; asked when it is down, so that a
            server which was started again on another port is found.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float,
        patience: Patience,
        api_key: str | None = None,
        locate: Callable[[], str | None] | None = None,
    ) -> None:
        self.url, self._timeout, self._patience, self._locate = url.rstrip("/"), timeout_s, patience, locate
        self._address = Address.parse(url)
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._mine = threading.local()
        self._all: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()
        self._warned_down = False
        self.retries = 0

    def _connection(self) -> tuple[TimedConnection, Address, bool]:
        """This thread's connection, where it leads, and whether it was used before."""
        address: Address = self._address
        connection, leads_to = getattr(self._mine, "connection", None), getattr(self._mine, "address", None)
        if connection is not None and leads_to == address:
            return connection, address, connection.sock is not None
        fresh = address.connect()
        self._mine.connection, self._mine.address = fresh, address
        with self._lock:
            self._all.add(fresh)
            self._all.discard(connection)
        if connection is not None:
            connection.close()
        return fresh, address, False

    def _once(self, method: str, path: str, body: bytes | None, seconds: float) -> tuple[int, bytes, str | None]:
        """Status, body and ``Retry-After`` of one answer."""
        connection, address, used = self._connection()
        connection.start(seconds)
        while True:
            try:
                connection.request(method, address.prefix + path, body, self._headers)
                response = connection.getresponse()
                data = response.read(MAX_ANSWER + 1)
                if len(data) > MAX_ANSWER:
                    raise RequestFailed(f"the answer exceeds {MAX_ANSWER} bytes")
                if response.length:  # a read with a limit does not notice by itself
                    raise http.client.IncompleteRead(data, response.length)
                return response.status, data, response.getheader("Retry-After")
            except (*DROPPED, OSError, RequestFailed) as error:
                connection.close()
                # A kept-alive connection may have been closed while idle: that is no failure of the server.
                if used and isinstance(error, DROPPED) and not isinstance(error, http.client.IncompleteRead):
                    used = False
                    continue
                raise

    def call(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        """The JSON object that the server answers.

        Retried: status 429 and 5xx, not before ``Retry-After`` is over, and dropped connections. Not retried: other
        statuses, time-outs, answers that are no JSON. While the server is down, tries go on until
        ``Patience.wait_s`` is over. Nothing goes on for longer than ``Patience.budget_s``.

        Raises:
            RequestFailed: with the cause.
        """
        attempt, started = 0, time.monotonic()
        while True:
            seconds = min(self._timeout, self._patience.budget_s - (time.monotonic() - started))
            try:
                return self._answer(*self._once(method, path, body, seconds))
            except (RequestFailed, *DROPPED, OSError) as error:
                failure, again = _judge(error, seconds)
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
            time.sleep(pause)
            attempt += 1

    def _locate_again(self, waiting: bool) -> None:
        """The server is down: go where it is now, if it is anywhere; say once that all is waiting."""
        url = self._locate() if self._locate is not None else None
        with self._lock:
            if url is not None and url.rstrip("/") != self.url:
                self.url, self._address = url.rstrip("/"), Address.parse(url)
            elif waiting and not self._warned_down:
                self._warned_down = True
                log.warning("%s is down; waiting for it, %g s at most", self.url, self._patience.wait_s)

    def _answer(self, status: int, data: bytes, retry_after: str | None = None) -> dict[str, Any]:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):  # the latter: nested too deeply
            value = None
        if status != http.client.OK:
            message = ""
            if isinstance(value, dict) and isinstance(value.get("error"), dict):
                message = str(value["error"].get("message", ""))[:300]
            cause = f"HTTP {status}{': ' + message if message else ''}"
            raise RequestFailed(cause, status=status, down=status in NO_SERVER, retry_after_s=_seconds(retry_after))
        if not isinstance(value, dict):
            raise RequestFailed("the answer is not a JSON object")
        return value

    def close(self) -> None:
        with self._lock:
            for connection in self._all:
                connection.close()
            self._all.clear()
        self._mine = threading.local()


def _seconds(retry_after: str | None) -> float:
    """The seconds of a ``Retry-After``; 0 without one, and for a date, which our servers do not send."""
    text = (retry_after or "").strip()
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0.0


def _judge(error: Exception, timeout_s: float) -> tuple[RequestFailed, bool]:
    """What a failure is called, and whether another try may help."""
    if isinstance(error, RequestFailed):
        return error, error.status is not None and (error.status == 429 or error.status >= 500)
    if isinstance(error, TimeoutError):
        return RequestFailed(f"no answer within {timeout_s:g} s"), False
    if isinstance(error, ConnectionRefusedError):
        return RequestFailed("connection refused", down=True), True
    if isinstance(error, DROPPED):
        return RequestFailed("connection dropped", down=True), True
    return RequestFailed(f"connection failed ({type(error).__name__})"), False
