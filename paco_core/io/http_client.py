"""HTTP client of one server that answers with JSON: reward models, chat models, scorers.

Each request uses a new connection and has one time limit. Only failures that another try can fix are retried. HTTP/1.1
answers carry no id, so on a reused connection a late answer to one request would be read as the answer to the next
request. httpx has this problem unless it keeps no connection (``max_keepalive_connections=0``).

httpx limits only the time of each read, so a server that sends one byte at a time is never late. Therefore, all
requests of a process run in one event loop, in which ``asyncio.timeout`` limits the complete request.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from paco_core.io.files import DataError
from paco_core.io.local_server import is_loopback
from paco_core.io.secrets import add_secret, one_line

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping

MAX_ANSWER = 8 << 20
MAX_PAUSE_S = 30.0  # the upper limit of a requested pause
NO_SERVER = (502, 503)  # status of a gateway whose server is down, and of a loading server
BUSY = (408, 409, 429)  # and 5xx: another try may go well
_loops: dict[int, asyncio.AbstractEventLoop] = {}
_loops_lock = threading.Lock()
log = logging.getLogger("paco.http")
logging.getLogger("httpx").setLevel(logging.WARNING)  # below, it logs each URL, which may contain a key


class RequestFailed(Exception):
    """A request failed. The message is its cause, in one line without secrets.

    Attributes:
        kind: no connection, connection refused ("refused"), no answer in time, a status other than 200, or an answer
            that is not a JSON object.
        down: no server answered, or the server cannot answer now.
        retry_after_s: seconds that the server requests to wait before another try.
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
    """Limits of retries: at most ``retries`` tries after the first, and ``wait_s`` seconds while the server is down.

    ``budget_s``: seconds for all tries of a request with the pauses between them. ``when_late``: also retry time-outs.
    """

    retries: int = 4
    backoff_s: float = 0.25
    wait_s: float = 0.0
    budget_s: float = math.inf
    when_late: bool = False

    def pause(self, attempt: int, at_least_s: float = 0.0) -> float:
        """Seconds before try number ``attempt`` + 1, doubled each time, with random variation between clients.

        Args:
            at_least_s: seconds that the server requests, used up to :data:`MAX_PAUSE_S`.
        """
        backoff_s = min(8.0, self.backoff_s * 2**attempt) * (0.5 + random.random())
        return max(backoff_s, min(at_least_s, MAX_PAUSE_S))


class HttpClient:
    """Requests to one server from any number of threads.

    Args:
        timeout_s: seconds for one try of a request, from connecting to the last byte of the answer.
        locate: returns the current address of the server, or None if it is down. Called when the server is down,
            because a restarted server may have another port.
        through_proxy: use the proxy of ``https_proxy`` or ``http_proxy``, unless ``no_proxy`` lists the host or the
            host is this machine. Requests to a server of this project use no proxy.

    Raises:
        DataError: if the URL, the key or a proxy of the environment cannot be used.
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
        import httpx

        self.url, self._timeout, self._patience, self._locate = url.rstrip("/"), timeout_s, patience, locate
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise DataError(f"server address {url!r}: expected http://host:port")
        headers = {"Content-Type": "application/json", "User-Agent": "paco", "Connection": "close"}
        headers["Accept-Encoding"] = "identity"  # a packed answer may be larger than MAX_ANSWER
        if api_key:
            add_secret(api_key)
            if not (api_key.isascii() and api_key.isprintable()):
                raise DataError(f"{url}: the API key contains a character that is not printable ASCII")
            headers["Authorization"] = f"Bearer {api_key}"
        proxies = through_proxy and not is_loopback(parts.hostname)
        try:
            self._http = httpx.AsyncClient(
                headers=headers,
                timeout=None,  # noqa: S113 - `_once` limits the time
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
                verify=_trusted() if proxies or parts.scheme == "https" else False,
                trust_env=proxies,
            )
        except (ImportError, ValueError, httpx.InvalidURL) as error:  # ImportError: a SOCKS proxy
            proxy = "the proxy that https_proxy, http_proxy or all_proxy names"
            raise DataError(f"{proxy}: expected http://host:port ({one_line(str(error))})") from None
        self._pending, self._closed, self._warned_down = set[Future[dict[str, Any]]](), False, False
        self.retries = 0

    def call(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        """Send a request and return the JSON object of the answer.

        Retried: status 408, 409, 429 and 5xx, not before ``Retry-After``, and dropped connections. Not retried: other
        statuses, time-outs (except with ``Patience.when_late``), and answers that are not JSON. While the server is
        down, tries continue until ``Patience.wait_s``. All tries end within ``Patience.budget_s``.

        Raises:
            RequestFailed: with the cause.
        """
        future = asyncio.run_coroutine_threadsafe(self._call(method, path, body), _loop())
        self._pending.add(future)
        try:
            if self._closed:  # from here on `interrupt` cancels it
                raise CancelledError
            return future.result()
        except CancelledError:
            raise RequestFailed("interrupted", "connection") from None
        finally:
            future.cancel()
            self._pending.discard(future)

    def interrupt(self) -> None:
        """Fail the requests that wait for an answer now, and all later ones."""
        self._closed = True
        for future in list(self._pending):
            future.cancel()

    async def _call(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        from httpx import HTTPError

        attempt, started = 0, time.monotonic()
        while True:
            seconds = min(self._timeout, self._patience.budget_s - (time.monotonic() - started))
            try:
                return await self._once(method, path, body, seconds)
            except (RequestFailed, HTTPError, OSError) as error:  # OSError: TimeoutError, too
                failure, retryable = _classify(error, seconds, self._patience)
            pause = self._patience.pause(attempt, failure.retry_after_s)
            spent = time.monotonic() - started
            waiting = failure.down and spent < self._patience.wait_s
            late = spent + pause >= self._patience.budget_s
            if late or not retryable or (attempt >= self._patience.retries and not waiting):
                raise failure from None
            if failure.down:
                self._locate_again(waiting)
            await asyncio.sleep(pause)
            self.retries += 1
            attempt += 1

    async def _once(self, method: str, path: str, body: bytes | None, seconds: float) -> dict[str, Any]:
        async with asyncio.timeout(seconds), self._http.stream(method, f"{self.url}{path}", content=body) as response:
            data = bytearray()
            async for piece in response.aiter_raw():
                data += piece
                if len(data) > MAX_ANSWER:
                    raise RequestFailed(f"the answer exceeds {MAX_ANSWER} bytes", "answer")
        return _answer(response.status_code, data, response.headers)

    def _locate_again(self, waiting: bool) -> None:
        """Look up the new address of a server that is down, and log once that all requests wait."""
        url = self._locate() if self._locate is not None else None
        if url is not None and url.rstrip("/") != self.url:
            self.url = url.rstrip("/")
        elif waiting and not self._warned_down:
            self._warned_down = True
            log.warning("%s is down; waiting for it, %g s at most", self.url, self._patience.wait_s)


def _answer(status: int, data: bytes | bytearray, headers: Mapping[str, str]) -> dict[str, Any]:
    """The JSON object of an answer.

    Raises:
        RequestFailed: if the status is not 200, or the body is not a JSON object.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):  # the latter: nested too deeply
        value = None
    if status != 200:
        moved = headers.get("Location") if 300 <= status < 400 else None
        message = f"it redirects to {one_line(moved)}; give that address" if moved else _message(value)
        cause = f"HTTP {status}{': ' + message if message else ''}"
        pause = _seconds(headers.get("Retry-After"))
        raise RequestFailed(cause, "status", status=status, down=status in NO_SERVER, retry_after_s=pause)
    if not isinstance(value, dict):
        raise RequestFailed("the answer is not a JSON object", "answer")
    return value


def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process; a fork has none of the threads of its parent."""
    with _loops_lock:
        if os.getpid() not in _loops:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="http", daemon=True).start()
        return _loops[os.getpid()]


@cache
def _trusted() -> ssl.SSLContext:
    """Trust the system's authorities (or ``SSL_CERT_FILE``), and Mozilla's: a container may lack the former."""
    import ssl

    import certifi

    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


def _message(answer: Any) -> str:
    """The message of an error answer: in OpenAI's format, or a text under one of the usual keys."""
    if not isinstance(answer, dict):
        return ""
    error = answer.get("error")
    message = (
        error.get("message") if isinstance(error, dict) else error or answer.get("message") or answer.get("detail")
    )
    return message if isinstance(message, str) else ""


def _seconds(retry_after: str | None) -> float:
    """The seconds of a ``Retry-After`` header (a number or a date); 0 if it is missing or invalid."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    try:
        date = parsedate_to_datetime(text)
        return max(0.0, (date - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):  # no date; one without a zone; one beyond the calendar
        return 0.0


def _classify(error: Exception, timeout_s: float, patience: Patience) -> tuple[RequestFailed, bool]:
    """The kind of a failure, and whether another try may help."""
    import httpx

    if isinstance(error, RequestFailed):
        return error, error.is_busy
    causes = list(_causes(error))

    def is_caused_by(kind: type[BaseException]) -> bool:
        return any(isinstance(cause, kind) for cause in causes)

    if is_caused_by(TimeoutError):
        return RequestFailed(f"no answer within {timeout_s:g} s", "time"), patience.when_late
    if is_caused_by(ConnectionRefusedError):
        return RequestFailed("connection refused", "refused", down=True), True
    answer_broke_off = isinstance(error, httpx.ReadError | httpx.WriteError | httpx.RemoteProtocolError)
    if answer_broke_off or is_caused_by(ConnectionError):
        return RequestFailed("connection dropped", "connection", down=True), True
    cause = next((cause for cause in reversed(causes) if isinstance(cause, OSError)), error)
    return RequestFailed(f"connection failed ({cause})", "connection"), False


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those behind it: httpx, httpcore and anyio wrap the error of the operating system."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):  # one for each address of a host
            yield from error.exceptions
        error = error.__cause__ or error.__context__
