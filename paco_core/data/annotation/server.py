"""The annotation page: an HTTP server on the loopback with one secret link per annotator."""

import hashlib
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from paco_core.data.annotation.queue import AnnotationQueue, Last, NotAssigned, UnknownInstance
from paco_core.data.annotation.store import Annotator, NotStored, StaleAnswer
from paco_core.data.local_page import HOST, application, get, listen, post
from paco_core.io import local_server
from paco_core.io.files import DataError
from paco_core.io.validation import StrictModel

PAGE = Path(__file__).parent / "page"
MAX_BODY = 16 * 1024
LONGEST_S = 24 * 3600.0
__all__ = ["HOST", "create_annotation_app", "listen", "serve_annotation"]


class AnswerBody(StrictModel):
    """What the page sends: places on the page, best first; none unless the verdict is ``ranked``."""

    model_config = ConfigDict(extra="forbid")

    instance: str = Field(max_length=64)
    revision: int = Field(gt=0)
    verdict: Literal["ranked", "cannot_tell", "skipped"]
    ranking: list[int] = Field(max_length=64)
    seconds: Annotated[float, Field(ge=0)]


class UndoBody(StrictModel):
    """The answer that the page showed as the last one."""

    model_config = ConfigDict(extra="forbid")

    instance: str = Field(max_length=64)
    revision: int = Field(gt=0)


def create_annotation_app(queue: AnnotationQueue, at_end: Callable[[], object] = lambda: None) -> Starlette:
    """The application; every path below ``/a/TOKEN`` belongs to one annotator.

    Args:
        at_end: called after the server has answered its last request.
    """

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        at_end()

    def annotator_of(request: Request) -> Annotator:
        annotator = queue.annotator(request.path_params["token"])
        if annotator is None:
            raise HTTPException(404, "this link is unknown; ask the person who sent it for a new link")
        return annotator

    def state(annotator: Annotator) -> dict[str, Any]:
        return {"annotator": annotator.name, **asdict(queue.view(annotator))}

    def root(_request: Request) -> Response:
        return FileResponse(PAGE / "nobody.html")

    def page(request: Request) -> Response:
        is_known = queue.annotator(request.path_params["token"]) is not None
        file = PAGE / ("index.html" if is_known else "nobody.html")
        return FileResponse(file, 200 if is_known else 404, {"Cache-Control": "no-store"})

    def view(request: Request) -> dict[str, Any]:
        return state(annotator_of(request))

    def answer(request: Request, body: AnswerBody) -> dict[str, Any]:
        annotator = annotator_of(request)
        seconds = min(body.seconds, LONGEST_S)
        queue.answer(annotator, body.instance, body.revision, body.verdict, body.ranking, seconds)
        return state(annotator)

    def undo(request: Request, body: UndoBody) -> dict[str, Any]:
        annotator = annotator_of(request)
        queue.undo(annotator, Last(body.instance, body.revision))
        return state(annotator)

    def picture(request: Request) -> Response:
        annotator, name = annotator_of(request), request.path_params["name"]
        if not re.fullmatch("reference|[0-9]{1,3}", name):
            raise HTTPException(404, "no such picture")
        instance = request.path_params["instance"]
        data = queue.picture(annotator, instance, None if name == "reference" else int(name))
        # The browser caches the image and revalidates it each time, because its grid can be generated again.
        mark = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
        headers = {"Cache-Control": "private, no-cache", "ETag": mark}
        if request.headers.get("if-none-match") == mark:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type="image/png", headers=headers)

    routes = [
        get("/", root),
        get("/a/{token}", page),
        get("/a/{token}/view", view),
        post("/a/{token}/answers", answer, AnswerBody),
        post("/a/{token}/undo", undo, UndoBody),
        get("/a/{token}/pictures/{instance}/{name}.png", picture),
    ]
    refusals = {DataError: 422, UnknownInstance: 404, NotAssigned: 403, StaleAnswer: 409, NotStored: 503}
    return application(routes, PAGE, refusals, MAX_BODY, lifespan=lifespan)


def serve_annotation(
    queue: AnnotationQueue, listener: socket.socket, at_end: Callable[[], object] = lambda: None
) -> None:
    """Serve until Ctrl-C or SIGTERM, then call ``at_end``."""
    local_server.run_server(create_annotation_app(queue, at_end), listener)
