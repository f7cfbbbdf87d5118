"""A page for people on this machine: FastAPI on the loopback, with the guards that every such page needs."""

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.middleware.trustedhost import TrustedHostMiddleware

from paco_core.io.files import DataError
from paco_core.io.same_site import is_own_page

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


def guard(app: FastAPI, max_body: int, *, larger: Mapping[str, int] | None = None, own_page_only: bool = False) -> None:
    """Refuse what other pages or programs could make a browser send, and what is too large.

    Args:
        max_body: bytes of a request's body at most.
        larger: the limit of some paths.
        own_page_only: refuse what a browser sends for a page of another origin. A page whose links are secret does
            without, and can stand behind a proxy that gives it another origin.
    """
    # A foreign page that points its own name at the loopback would else read the pictures.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])

    @app.middleware("http")
    async def check(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        refused = _too_large(request, (larger or {}).get(request.url.path, max_body))
        if refused is None and own_page_only:
            refused = _foreign(request)
        response = refused or await go_on(request)
        response.headers.update(HEADERS)
        return response

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        """Without what was sent: FastAPI would echo it, and fail on a NaN or half a character."""
        faults = [f"{'.'.join(map(str, fault['loc'][:4]))}: {fault['msg']}" for fault in error.errors()]
        text = "; ".join(faults)[:1000].encode("ascii", "replace").decode()
        return JSONResponse({"detail": text}, 422)


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


def add_files(app: FastAPI, page: Path) -> None:
    """Serve a page's files, and those that all pages share, at ``/page/NAME``.

    No path is made of what a client sends: it names one of the files that there are at the start.
    """
    files = {file.name: file for folder in (COMMON, page) for file in sorted(folder.iterdir()) if file.is_file()}

    @app.get("/page/{name}")
    def file(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "there is no such file")
        return FileResponse(files[name], headers={"Cache-Control": "no-cache"})


def failing(status: int) -> Callable[[Request, Exception], Response]:
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
