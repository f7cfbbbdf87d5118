"""A page for people on this machine: Starlette on the loopback, with the guards that every such page needs."""

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from paco_core.io.files import DataError
from paco_core.io.local_server import is_own_page
from paco_core.io.validation import validation_errors

HOST = "127.0.0.1"
#: Nothing from elsewhere, no frames, no inline script, no use by another page: it shows private pictures.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
COMMON = Path(__file__).parent / "page"  # the look that all pages share


B = TypeVar("B", bound=BaseModel)


def application(
    routes: Sequence[Route],
    page: Path,
    refusals: Mapping[type[Exception], int],
    max_body: int,
    *,
    larger: Mapping[str, int] | None = None,
    own_page_only: bool = False,
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]] | None = None,
) -> Starlette:
    """The application of a page, which refuses what others could make a browser send, and what is too large.

    Args:
        page: folder of its files, which are served, with those that all pages share, at ``/page/NAME``.
        refusals: statuses of exceptions whose texts are answered.
        max_body: bytes of a request's body at most.
        larger: the limit of some paths.
        own_page_only: refuse what a browser sends for a page of another origin. A page whose links are secret does
            without, and can stand behind a proxy that gives it another origin.
    """

    async def check(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        rejection = _too_large(request, (larger or {}).get(request.url.path, max_body))
        if rejection is None and own_page_only:
            rejection = _foreign(request)
        response = rejection or await go_on(request)
        response.headers.update(HEADERS)
        return response

    return Starlette(
        routes=[*routes, _files(page)],
        middleware=[
            Middleware(BaseHTTPMiddleware, dispatch=check),
            # A foreign page that points its own name at the loopback would else read the pictures.
            Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"]),
        ],
        exception_handlers={
            HTTPException: _http_error,
            **{kind: _failing(status) for kind, status in refusals.items()},
        },
        lifespan=lifespan,
    )


def get(path: str, answer: Callable[[Request], Response | dict[str, Any]]) -> Route:
    """A route to read; ``answer`` runs in a thread, and a ``dict`` is answered as JSON."""

    def endpoint(request: Request) -> Response:
        return _response(answer(request), 200)

    return Route(path, endpoint)


def post(path: str, answer: Callable[[Request, B], dict[str, Any]], form: type[B], status: int = 200) -> Route:
    """A route that takes JSON of a form; ``answer`` runs in a thread, and is answered as JSON."""

    async def endpoint(request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # what a form of a foreign page cannot send without asking
            raise HTTPException(415, f"content type {kind[:40] or 'missing'}: expected application/json")
        try:
            body = form.model_validate_json(await request.body())
        except ValidationError as error:
            text = "; ".join(validation_errors(error, depth=3))[:1000].encode("ascii", "replace").decode()
            raise HTTPException(422, text) from None
        return _response(await run_in_threadpool(answer, request, body), status)

    return Route(path, endpoint, methods=["POST"])


def _response(answer: Response | dict[str, Any], status: int) -> Response:
    return answer if isinstance(answer, Response) else JSONResponse(answer, status)


def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": error.detail}, error.status_code, error.headers)


def _too_large(request: Request, most: int) -> Response | None:
    length = request.headers.get("content-length", "")
    if request.method != "POST" or (re.fullmatch("[0-9]{1,9}", length) and int(length) <= most):
        return None
    return JSONResponse({"detail": f"a body of at most {most} bytes is expected"}, 413)


def _foreign(request: Request) -> Response | None:
    origin = request.headers.get("origin")
    if origin is None or is_own_page(origin, request.headers.get("host", ""), tls=False):
        return None
    return JSONResponse({"detail": "requests of other pages are not answered"}, 403)


def _files(page: Path) -> Route:
    """A page's files, and those that all pages share.

    No path is made of what a client sends: it names one of the files that there are at the start.
    """
    files = {file.name: file for folder in (COMMON, page) for file in sorted(folder.iterdir()) if file.is_file()}

    def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files:
            raise HTTPException(404, "there is no such file")
        return FileResponse(files[name], headers={"Cache-Control": "no-cache"})

    return Route("/page/{name}", file)


def _failing(status: int) -> Callable[[Request, Exception], Response]:
    """A handler that answers an exception with its text."""
    return lambda _request, error: JSONResponse({"detail": str(error)}, status)


def listen(port: int) -> socket.socket:
    """A socket on the loopback; port 0 takes any free one.

    Raises:
        DataError: when the port is taken or not allowed.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise DataError(f"port {port} on {HOST} cannot be used ({error}); choose another with --port") from None
    return listener
