"""HTTP of the servers of this project: checks of origin, API key and size of a request, and JSON responses.

A page of another site can make a browser send requests to a server on this machine. With DNS rebinding, the page uses
its own host name, so ``Host`` is not the server's. A form or a text needs no permission, so ``Origin`` is not the
server's, and the content type is not JSON.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from paco_core.io.local_server import hostname, is_loopback, is_own_page
from paco_core.serving.protocol import RequestError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

MAX_BODY = 24 << 20  # bytes: two pictures of a few megapixels, as base64
MAX_BODIES = 128 << 20  # bytes of all requests in memory; further requests stay in the network
LEAST_BODY = 128 << 10  # bytes that a small request counts
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104  (addresses of sockets that listen everywhere; nothing is bound here)
WAIT_S = 30.0  # time limit to acquire memory for a request
RETRY_AFTER_S = 2


class Budget:
    """A fair semaphore over bytes or pixels; returns 503 after ``wait_s``.

    Args:
        limit: the total, and the maximum of one share.
        resource: its name, for the error message ("bytes of requests").
    """

    def __init__(self, limit: int, resource: str, wait_s: float = WAIT_S) -> None:
        self.limit, self.used, self._resource, self._wait_s = limit, 0, resource, wait_s
        self._turn, self._freed = asyncio.Lock(), asyncio.Event()

    async def acquire(self, amount: Callable[[], int]) -> int:
        """Wait for a share and return its size. :meth:`release` returns the share.

        Args:
            amount: the size. It is called again after each release, because other requests may have changed it.

        Raises:
            RequestError: 503 with ``Retry-After``, when the share is not available within ``wait_s``.
        """
        if not self._turn.locked() and self.used + (share := amount()) <= self.limit:  # nobody waits: no timer
            self.used += share
            return share
        try:
            async with asyncio.timeout(self._wait_s), self._turn:
                while self.used + (share := amount()) > self.limit:
                    self._freed.clear()
                    await self._freed.wait()
                self.used += share
                return share
        except TimeoutError:
            message = f"the server is busy: {self.used} of {self.limit} {self._resource} are in use; try again"
            raise RequestError(503, message, "busy", retry_after_s=RETRY_AFTER_S) from None

    def release(self, share: int) -> None:
        """Return a share of :meth:`acquire`."""
        self.used -= share
        self._freed.set()

    @asynccontextmanager
    async def share(self, amount: int) -> AsyncIterator[None]:
        """Hold a share for as long as the block runs.

        Raises:
            RequestError: see :meth:`acquire`.
        """
        share = await self.acquire(lambda: amount)
        try:
            yield
        finally:
            self.release(share)


def body_budget() -> Budget:
    """The memory that the requests of one server share."""
    return Budget(MAX_BODIES, "bytes of requests")


class SameSite:
    """Middleware that rejects requests from pages of other sites and requests with a foreign ``Host``.

    Args:
        host: address on which the server listens. A server that listens everywhere accepts any host name; the API key,
            without which it does not start, protects it.
        on_refusal: called with each rejected request.
    """

    def __init__(self, app: ASGIApp, host: str, on_refusal: Callable[[RequestError], object]) -> None:
        self._app, self._host, self._on_refusal = app, host, on_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or reject it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except RequestError as error:
            self._on_refusal(error)
            await error_response(error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        if not self._is_ours(host):
            raise RequestError(403, f"Host {host[:80]!r} is not this server: use {self._host} or localhost", "host")
        if origin is not None and not is_own_page(origin, host):
            raise RequestError(403, f"a page of {origin[:80]!r} may not send requests here", "origin")
        kind = headers.get(b"content-type", "").partition(";")[0].strip().lower()
        if scope["method"] not in ("GET", "HEAD", "OPTIONS") and kind != "application/json":
            raise RequestError(415, f"Content-Type {kind[:80]!r}: expected application/json", "content_type")

    def _is_ours(self, header: str) -> bool:
        name = hostname(header)
        return self._host in EVERYWHERE or name == self._host.lower() or is_loopback(name)


def authorise(request: Request, key: str | None) -> None:
    """Check the API key of a request; without a key, every request passes.

    Raises:
        RequestError: 401. The comparison takes constant time.
    """
    if key is None:
        return
    token = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(token.encode(), key.encode()):
        raise RequestError(401, "wrong or missing API key", "invalid_api_key")


@asynccontextmanager
async def body_of(request: Request, budget: Budget) -> AsyncIterator[bytes]:
    """Read the body of a request, which counts against ``budget`` until the block ends.

    Nothing is read before the budget has memory for the complete body.

    Raises:
        RequestError: 413 as soon as the body exceeds :data:`MAX_BODY`; 408 when it does not arrive in time; 503 when
            the budget is exhausted.
    """
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isdigit() else MAX_BODY
    if size > MAX_BODY:
        raise _too_large()
    async with budget.share(max(size, LEAST_BODY)):
        yield await _read(request)


async def _read(request: Request) -> bytes:
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > MAX_BODY:
                raise _too_large()
            chunks.append(chunk)
    except ClientDisconnect:
        raise RequestError(408, "the client closed the connection before its body arrived", "body_timeout") from None
    return b"".join(chunks)


def _too_large() -> RequestError:
    return RequestError(413, f"request body exceeds {MAX_BODY} bytes", "body_too_large")


def as_json(value: Any, status: int = 200) -> Response:
    """A JSON response.

    Raises:
        ValueError: for NaN and infinity, which JSON does not have.
    """
    return Response(json.dumps(value, allow_nan=False), status, media_type="application/json")


def error_response(error: RequestError) -> Response:
    """An error in OpenAI's format, with ``Retry-After`` if a retry may help."""
    answer = as_json(error.body(), error.status)
    if error.retry_after_s is not None:
        answer.headers["Retry-After"] = str(error.retry_after_s)
    return answer


async def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(RequestError(error.status_code, str(error.detail)))


async def _refusal(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(error)


#: Exception handlers of an application: its errors and those of Starlette have OpenAI's format.
ERRORS = {HTTPException: _http_error, RequestError: _refusal}
