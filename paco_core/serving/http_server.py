"""HTTP of the servers of this project: origin, API key and size of a request, and answers as JSON.

A browser can be made to send a request that its user did not mean, so the first check is against pages of other sites.
A page can reach a server on this machine under a name of its own (DNS rebinding): then ``Host`` is another one than the
server's. It can send a form or a text without permission: then ``Origin`` is another one, and the body is not declared
as JSON.
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
MAX_BODIES = 128 << 20  # bytes of all requests that a server holds at a time; further ones are left in the network
LEAST_BODY = 128 << 10  # that a request counts at least: one of few bytes costs something, too
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104  (addresses of sockets that listen everywhere; nothing is bound here)
WAIT_S = 30.0  # that a request waits for its share
RETRY_AFTER_S = 2


class Budget:
    """A semaphore over bytes or pixels, which answers 503 after ``wait_s``; first come, first served.

    Args:
        limit: how much there is, and the most that one share may be.
        what: of what, for the refusal ("bytes of requests").
    """

    def __init__(self, limit: int, what: str, wait_s: float = WAIT_S) -> None:
        self.limit, self.used, self._what, self._wait_s = limit, 0, what, wait_s
        self._turn, self._freed = asyncio.Lock(), asyncio.Event()

    async def acquire(self, amount: Callable[[], int]) -> int:
        """Wait for a share, which what :meth:`release` returns; how much it is.

        Args:
            amount: asked again whenever something has become free, for it may depend on what others did meanwhile.

        Raises:
            RequestError: 503 with ``Retry-After``, when it is not there within ``wait_s``.
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
            message = f"the server is busy: {self.used} of {self.limit} {self._what} are in use; try again"
            raise RequestError(503, message, "busy", retry_after_s=RETRY_AFTER_S) from None

    def release(self, share: int) -> None:
        """Return what :meth:`acquire` gave."""
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


def bodies() -> Budget:
    """What the requests of one server share."""
    return Budget(MAX_BODIES, "bytes of requests")


class SameSite:
    """Lets requests pass that were sent to this server by its own name, and not by a page of another site.

    Args:
        host: where the server listens. A server that listens everywhere has names that it cannot know: any is right,
            and the API key, without which it does not start, is what protects it.
        refused: called with each refusal.
    """

    def __init__(self, app: ASGIApp, host: str, refused: Callable[[RequestError], object]) -> None:
        self._app, self._host, self._refused = app, host, refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except RequestError as error:
            self._refused(error)
            await refuse(error)(scope, receive, send)
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
    """Let a request pass that carries the key; any, where there is no key.

    Raises:
        RequestError: 401. The comparison takes the same time however much of the key is right.
    """
    if key is None:
        return
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(given.encode(), key.encode()):
        raise RequestError(401, "wrong or missing API key", "invalid_api_key")


@asynccontextmanager
async def body_of(request: Request, room: Budget) -> AsyncIterator[bytes]:
    """The request's body, which counts among those that the server holds for as long as the block runs.

    Nothing is read before there is room for all of it.

    Raises:
        RequestError: 413 as soon as it is known to exceed :data:`MAX_BODY`, the rest is not read; 408 when it does not
            arrive (in time); 503 when there is no room for it.
    """
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isdigit() else MAX_BODY
    if size > MAX_BODY:
        raise _too_large()
    async with room.share(max(size, LEAST_BODY)):
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
    """A JSON answer.

    Raises:
        ValueError: for a number that JSON does not know (NaN, Infinity).
    """
    return Response(json.dumps(value, allow_nan=False), status, media_type="application/json")


def refuse(error: RequestError) -> Response:
    """A refusal in OpenAI's shape, with ``Retry-After`` where trying again may help."""
    answer = as_json(error.body(), error.status)
    if error.retry_after_s is not None:
        answer.headers["Retry-After"] = str(error.retry_after_s)
    return answer


async def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refuse(RequestError(error.status_code, str(error.detail)))


async def _refusal(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return refuse(error)


#: For an application: refusals, and what Starlette refuses by itself, are answered in OpenAI's shape.
ERRORS = {HTTPException: _http_error, RequestError: _refusal}
