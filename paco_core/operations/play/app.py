"""The page of ``paco play`` over HTTP: what it is given, what it sends, and the limits of both."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from paco_core.io.files import DataError
from paco_core.io.local_page import add_files, failing, guard
from paco_core.operations.play.about import about
from paco_core.operations.play.gallery import Gone
from paco_core.operations.play.jobs import Full, Jobs, UnknownJob
from paco_core.operations.play.studio import MOST_PICTURES, Studio, StudioOptions

PAGE = Path(__file__).parent / "page"
MAX_BODY = 64 * 1024
MAX_PICTURE = 32 * 1024 * 1024
MAX_SEEDS, MAX_SIDE = 8, 2048


Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]
PolicyName = Annotated[str, StringConstraints(pattern=r"^[\w.-]{1,100}(@[a-z]{1,20})?$")]
Name = Annotated[str, StringConstraints(pattern="^[0-9a-f]{20}$")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _OptionsBody(_Body):
    policy: PolicyName
    seeds: Annotated[int, Field(ge=1, le=MAX_SEEDS)]
    size: Annotated[int, Field(ge=16, le=MAX_SIDE)] | None = None
    beside: PolicyName | None = None

    def options(self) -> StudioOptions:
        return StudioOptions(self.policy, self.seeds, self.size, self.beside)


class PaintBody(_OptionsBody):
    """A theme and what each panel shows."""

    theme: Text
    panels: Annotated[list[Text], Field(min_length=2, max_length=8)]
    layout: Annotated[str, StringConstraints(pattern="^[1-8]x[1-8]$")] | None = None


class EditBody(_OptionsBody):
    """Pictures of the gallery, the one to edit first, and what to change."""

    pictures: Annotated[list[Name], Field(min_length=1, max_length=MOST_PICTURES)]
    instruction: Text


class ScoreBody(_Body):
    """Pictures of the gallery, and the theme that they were made for."""

    pictures: Annotated[list[Name], Field(min_length=2, max_length=MOST_PICTURES)]
    theme: Text | None = None
    reasons: bool = True


def create_app(studio: Studio, jobs: Jobs) -> FastAPI:
    """The application. Only ``jobs`` lets ``studio`` work; everything else answers at once."""
    app, gallery = FastAPI(title="paco play", openapi_url=None), studio.gallery
    guard(app, MAX_BODY, larger={"/pictures": MAX_PICTURE}, own_page_only=True)
    add_files(app, PAGE)
    for kind, status in ((DataError, 422), (UnknownJob, 404), (Gone, 404), (Full, 429)):
        app.add_exception_handler(kind, failing(status))

    @app.get("/")
    def index() -> Response:
        return FileResponse(PAGE / "index.html", headers={"Cache-Control": "no-store"})

    @app.get("/about")
    def offered() -> dict[str, Any]:
        return about(studio.root, studio.params, gallery)

    @app.post("/pictures")
    async def upload(request: Request) -> dict[str, Any]:
        data = await request.body()
        name, image = await run_in_threadpool(gallery.upload, data, "this picture")
        return {"picture": name, "width": image.width, "height": image.height}

    @app.get("/pictures/{name}.png")
    def picture(name: str) -> Response:
        headers = {"Cache-Control": "private, max-age=86400, immutable"}
        return Response(gallery.png(name), media_type="image/png", headers=headers)

    @app.post("/paint", status_code=202)
    def paint(body: PaintBody) -> dict[str, Any]:
        return jobs.submit(partial(studio.paint, body.theme, body.panels, replace(body.options(), layout=body.layout)))

    @app.post("/edit", status_code=202)
    def edit(body: EditBody) -> dict[str, Any]:
        for name in body.pictures:
            gallery.png(name)
        return jobs.submit(partial(studio.edit, body.pictures, body.instruction, body.options()))

    @app.post("/score", status_code=202)
    def score(body: ScoreBody) -> dict[str, Any]:
        for name in body.pictures:
            gallery.png(name)
        return jobs.submit(partial(studio.score, body.pictures, body.theme, body.reasons))

    @app.get("/jobs/{name}")
    def job(name: str) -> dict[str, Any]:
        return jobs.view(name)

    @app.post("/jobs/{name}/cancel")
    def cancel(name: str) -> dict[str, Any]:
        return jobs.cancel(name)

    return app
