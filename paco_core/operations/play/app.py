"""The page of ``paco play`` over HTTP: what it is given, what it sends, and the limits of both."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, StringConstraints, field_validator
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from paco_core.data.local_page import application, get, post
from paco_core.data.records.characters import MAX_CHARACTERS, MAX_IMAGES
from paco_core.io.files import DataError
from paco_core.io.validation import StrictModel
from paco_core.operations.play.about import about
from paco_core.operations.play.gallery import NoLongerStored
from paco_core.operations.play.jobs import Full, Jobs, UnknownJob
from paco_core.operations.play.studio import MOST_PICTURES, Studio, StudioOptions

PAGE = Path(__file__).parent / "page"
MAX_BODY = 64 * 1024
MAX_PICTURE = 32 * 1024 * 1024
MAX_SEEDS, MAX_SIDE = 8, 2048


Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]
PolicyName = Annotated[str, StringConstraints(pattern=r"^[\w.-]{1,100}(@[a-z]{1,20})?$")]
Name = Annotated[str, StringConstraints(pattern="^[0-9a-f]{20}$")]


class _Body(StrictModel):
    model_config = ConfigDict(extra="forbid")


class _OptionsBody(_Body):
    policy: PolicyName
    seeds: Annotated[int, Field(ge=1, le=MAX_SEEDS)]
    size: Annotated[int, Field(ge=16, le=MAX_SIDE)] | None = None
    beside: PolicyName | None = None

    def options(self) -> StudioOptions:
        return StudioOptions(self.policy, self.seeds, self.size, compare_with=self.beside)


class PaintBody(_OptionsBody):
    """A theme and what each panel shows."""

    theme: Text
    panels: Annotated[list[Text], Field(min_length=2, max_length=8)]
    layout: Annotated[str, StringConstraints(pattern="^[1-8]x[1-8]$")] | None = None


class EditBody(_OptionsBody):
    """Pictures of the gallery, the one to edit first, and what to change."""

    pictures: Annotated[list[Name], Field(min_length=1, max_length=MOST_PICTURES)]
    instruction: Text


class CharacterBody(_Body):
    """A name, and pictures of the gallery that show the character."""

    name: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]
    pictures: Annotated[list[Name], Field(min_length=1, max_length=MAX_IMAGES)]


class StoryBody(_OptionsBody):
    """The characters, the text of each panel, and what all panels share."""

    characters: Annotated[list[CharacterBody], Field(min_length=1, max_length=MAX_CHARACTERS)]
    panels: Annotated[list[Text], Field(min_length=1, max_length=8)]
    theme: Text | None = None

    @field_validator("characters")
    @classmethod
    def _unique_names(cls, characters: list[CharacterBody]) -> list[CharacterBody]:
        if len({character.name for character in characters}) < len(characters):
            raise ValueError("two characters have the same name; give each a separate name")
        return characters


class ScoreBody(_Body):
    """Pictures of the gallery, and the theme that they were made for."""

    pictures: Annotated[list[Name], Field(min_length=2, max_length=MOST_PICTURES)]
    theme: Text | None = None
    reasons: bool = True


def create_app(studio: Studio, jobs: Jobs) -> Starlette:
    """The application. Only ``jobs`` lets ``studio`` work; everything else answers at once."""
    gallery = studio.gallery

    def index(_request: Request) -> Response:
        return FileResponse(PAGE / "index.html", headers={"Cache-Control": "no-store"})

    def offered(_request: Request) -> dict[str, Any]:
        return about(studio.root, studio.params, gallery)

    async def upload(request: Request) -> Response:
        data = await request.body()
        name, image = await run_in_threadpool(gallery.upload, data, "this image")
        return JSONResponse({"picture": name, "width": image.width, "height": image.height})

    def picture(request: Request) -> Response:
        headers = {"Cache-Control": "private, max-age=86400, immutable"}
        return Response(gallery.png(request.path_params["name"]), media_type="image/png", headers=headers)

    def paint(_request: Request, body: PaintBody) -> dict[str, Any]:
        return jobs.submit(partial(studio.paint, body.theme, body.panels, replace(body.options(), layout=body.layout)))

    def edit(_request: Request, body: EditBody) -> dict[str, Any]:
        for name in body.pictures:
            gallery.png(name)
        return jobs.submit(partial(studio.edit, body.pictures, body.instruction, body.options()))

    def story(_request: Request, body: StoryBody) -> dict[str, Any]:
        characters = {character.name: character.pictures for character in body.characters}
        policies, record = studio.plan_story(body.panels, characters, body.theme, body.options())
        return jobs.submit(partial(studio.story, policies, record, body.options()))

    def score(_request: Request, body: ScoreBody) -> dict[str, Any]:
        for name in body.pictures:
            gallery.png(name)
        return jobs.submit(partial(studio.score, body.pictures, body.theme, body.reasons))

    def job(request: Request) -> dict[str, Any]:
        return jobs.view(request.path_params["name"])

    def cancel(request: Request) -> Response:
        return JSONResponse(jobs.cancel(request.path_params["name"]))

    routes = [
        get("/", index),
        get("/about", offered),
        Route("/pictures", upload, methods=["POST"]),
        get("/pictures/{name}.png", picture),
        post("/paint", paint, PaintBody, 202),
        post("/edit", edit, EditBody, 202),
        post("/score", score, ScoreBody, 202),
        post("/story", story, StoryBody, 202),
        get("/jobs/{name}", job),
        Route("/jobs/{name}/cancel", cancel, methods=["POST"]),
    ]
    refusals: dict[type[Exception], int] = {DataError: 422, UnknownJob: 404, NoLongerStored: 404, Full: 429}
    return application(routes, PAGE, refusals, MAX_BODY, larger={"/pictures": MAX_PICTURE}, own_page_only=True)
