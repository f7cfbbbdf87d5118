"""The annotation page over HTTP: FastAPI on the loopback, a link with a token for every annotator."""

import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.middleware.trustedhost import TrustedHostMiddleware

from paco_core.data.annotation.queue import AnnotationQueue, Last, NotAssigned, Unknown
from paco_core.data.annotation.store import Annotator, NotStored, StaleAnswer
from paco_core.io.files import DataError

PAGE = Path(__file__).parent / "page"
HOST = "127.0.0.1"
MAX_BODY = 16 * 1024
LONGEST_S = 24 * 3600.0
#: Nothing from elsewhere, no frames, no inline script: a page that shows private pictures.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class AnswerBody(BaseModel):
    """What the page sends: places on the page, best first; none unless the verdict is ``ranked``."""

    model_config = ConfigDict(extra="forbid")

    instance: str = Field(max_length=64)
    revision: int = Field(gt=0)
    verdict: Literal["ranked", "cannot_tell", "skipped"]
    ranking: list[int] = Field(max_length=64)
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class UndoBody(BaseModel):
    """The answer that the page showed as the last one."""

    model_config = ConfigDict(extra="forbid")

    instance: str = Field(max_length=64)
    revision: int = Field(gt=0)


def create_app(queue: AnnotationQueue, at_end: Callable[[], object] = lambda: None) -> FastAPI:
    """The application; every path below ``/a/TOKEN`` belongs to one annotator.

    Args:
        at_end: called when the server has answered its last request.
    """

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        at_end()

    app = FastAPI(title="paco annotate", openapi_url=None, lifespan=lifespan)
    # A foreign page that points its own name at the loopback would else read the pictures.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])

    @app.middleware("http")
    async def guard(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        length = request.headers.get("content-length", "")
        if request.method == "POST" and not (re.fullmatch("[0-9]{1,9}", length) and int(length) <= MAX_BODY):
            return JSONResponse({"detail": f"a body of at most {MAX_BODY} bytes is expected"}, 413)
        response = await go_on(request)
        response.headers.update(HEADERS)
        return response

    def who(token: str) -> Annotator:
        annotator = queue.annotator(token)
        if annotator is None:
            raise HTTPException(404, "unknown link; ask whoever sent it for a new one")
        return annotator

    Who = Annotated[Annotator, Depends(who)]

    def state(annotator: Annotator) -> dict[str, Any]:
        return {"annotator": annotator.name, **asdict(queue.view(annotator))}

    def failing(status: int) -> Callable[[Request, Exception], Response]:
        return lambda _request, error: JSONResponse({"detail": str(error)}, status)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        """Without what was sent: FastAPI would echo it, and fail on a NaN or half a character."""
        faults = [f"{'.'.join(map(str, fault['loc'][:4]))}: {fault['msg']}" for fault in error.errors()]
        text = "; ".join(faults)[:1000].encode("ascii", "replace").decode()
        return JSONResponse({"detail": text}, 422)

    for kind, status in ((DataError, 422), (Unknown, 404), (NotAssigned, 403), (StaleAnswer, 409), (NotStored, 503)):
        app.add_exception_handler(kind, failing(status))

    @app.get("/")
    def root() -> Response:
        return FileResponse(PAGE / "nobody.html")

    @app.get("/page/{name}")
    def asset(name: Literal["page.js", "page.css", "icon.svg"]) -> Response:
        return FileResponse(PAGE / name, headers={"Cache-Control": "no-cache"})

    @app.get("/a/{token}")
    def page(token: str) -> Response:
        known = queue.annotator(token) is not None
        file = PAGE / ("index.html" if known else "nobody.html")
        return FileResponse(file, 200 if known else 404, {"Cache-Control": "no-store"})

    @app.get("/a/{token}/view")
    def view(annotator: Who) -> dict[str, Any]:
        return state(annotator)

    @app.post("/a/{token}/answers")
    def answer(annotator: Who, body: AnswerBody) -> dict[str, Any]:
        seconds = min(body.seconds, LONGEST_S)
        queue.answer(annotator, body.instance, body.revision, body.verdict, body.ranking, seconds)
        return state(annotator)

    @app.post("/a/{token}/undo")
    def undo(annotator: Who, body: UndoBody) -> dict[str, Any]:
        queue.undo(annotator, Last(body.instance, body.revision))
        return state(annotator)

    @app.get("/a/{token}/pictures/{instance}/{name}.png")
    def picture(annotator: Who, instance: str, name: str) -> Response:
        if not re.fullmatch("reference|[0-9]{1,3}", name):
            raise HTTPException(404, "no such picture")
        data = queue.picture(annotator, instance, None if name == "reference" else int(name))
        return Response(data, media_type="image/png", headers={"Cache-Control": "private, max-age=86400, immutable"})

    return app


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


def serve(queue: AnnotationQueue, listener: socket.socket, at_end: Callable[[], object] = lambda: None) -> None:
    """Serve until Ctrl-C or SIGTERM, then call ``at_end``."""
    config = uvicorn.Config(create_app(queue, at_end), log_level="warning", timeout_graceful_shutdown=3)
    uvicorn.Server(config).run(sockets=[listener])
