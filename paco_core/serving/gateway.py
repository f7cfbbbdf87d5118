"""Several models behind one port: a request goes to the server of the model that it names.

The routes are the project's registry, read at every request: a server that comes or goes needs no word to the
gateway. Bodies pass unchanged in both directions; the answer is streamed. Limits are checked before anything is
passed on, so that an engine without limits of its own gets them here.

Started as ``python -m paco_core.serving.gateway --root DIR --fd N``; see :func:`paco_core.serving.endpoint.gateway`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from pydantic_core import from_json
from starlette.background import BackgroundTask

from paco_core.serving.engines.media import Media
from paco_core.serving.engines.pictures import head, payload
from paco_core.serving.guard import authorise, read_body
from paco_core.serving.protocol import RequestError
from paco_core.serving.registry import GATEWAY, Registry
from paco_core.serving.replies import answer_errors, as_json
from paco_core.serving.transport import API_KEY

MAX_PICTURES = 2
PROBE_S = 5.0  # a server's time to say how it is
OURS = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"})  # of one hop
log = logging.getLogger("paco.serving")


def routes(registry: Registry) -> dict[str, str]:
    """Address of each model that is served in this project."""
    living = filter(None, map(registry.living, registry.names()))
    return {record.name: record.url for record in living if record.engine != GATEWAY}


class Gateway:
    """The state behind the handlers.

    Args:
        where: the address of each model, asked at every request.
        timeout_s: seconds to wait for a model's answer.
        media: where pictures may come from besides data URLs.
    """

    def __init__(
        self,
        where: Callable[[], Mapping[str, str]],
        *,
        timeout_s: float,
        api_key: str | None = None,
        media: Media | None = None,
    ) -> None:
        self.where, self.api_key, self.media = where, api_key, media or Media()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        self.client = httpx.AsyncClient(
            timeout=httpx.Timeout(timeout_s, connect=PROBE_S), limits=limits, trust_env=False
        )
        self._metrics = CollectorRegistry()
        labels = ["model", "status"]
        self._requests = Counter(
            "paco_gateway_requests", "Requests by model and status", labels, registry=self._metrics
        )
        self._seconds = Histogram("paco_gateway_seconds", "Time to the first byte", ["model"], registry=self._metrics)

    def metrics(self) -> bytes:
        return generate_latest(self._metrics)

    async def forward(self, request: Request) -> Response:
        """Pass a request on to the server of its model.

        Raises:
            RequestError: 400 without a model, 404 for one that is not served, 502 where its server is down,
                504 where it does not answer in time.
        """
        began = time.perf_counter()
        body = await read_body(request)
        question = _parse(body)
        model = question.get("model")
        if not isinstance(model, str):
            raise RequestError(400, "model: expected the name of a served model; GET /v1/models lists them")
        where = self.where()
        if model not in where:
            served = ", ".join(map(repr, sorted(where))) or "none"
            raise RequestError(404, f"model {model!r} is not served here; served are: {served}", "model_not_found")
        await asyncio.to_thread(check_pictures, question, self.media)
        headers = {name: value for name, value in request.headers.items() if name not in OURS}
        url = where[model] + request.url.path
        try:
            onward = self.client.build_request(request.method, url, content=body, headers=headers)
            answer = await self.client.send(onward, stream=True)
        except httpx.TimeoutException:
            self._requests.labels(model, "504").inc()
            raise RequestError(504, f"{model} does not answer in time", "timeout") from None
        except httpx.TransportError as error:
            self._requests.labels(model, "502").inc()
            raise RequestError(502, f"the server of {model} is down ({type(error).__name__})", "server_down") from None
        self._requests.labels(model, str(answer.status_code)).inc()
        self._seconds.labels(model).observe(time.perf_counter() - began)
        kept = {name: value for name, value in answer.headers.items() if name not in OURS}
        if "content-length" in answer.headers:  # so that half a body is seen to be half
            kept["content-length"] = answer.headers["content-length"]
        return StreamingResponse(answer.aiter_raw(), answer.status_code, kept, background=BackgroundTask(answer.aclose))

    async def ask(self, url: str, request: Request) -> dict[str, Any] | None:
        """The JSON object at a server's address; None when it does not answer."""
        key = request.headers.get("authorization")
        try:
            answer = await self.client.get(url, timeout=PROBE_S, headers={"authorization": key} if key else None)
            value = answer.raise_for_status().json() if answer.content else {}
        except (httpx.HTTPError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    async def models(self, request: Request) -> dict[str, Any]:
        """The cards of all models whose servers answer."""
        lists = await asyncio.gather(*(self.ask(f"{url}/v1/models", request) for url in self.where().values()))
        return {"object": "list", "data": [card for one in lists if one is not None for card in one.get("data", [])]}

    async def health(self, request: Request) -> dict[str, dict[str, str]]:
        """ "ok" or "down" for each model."""
        where = self.where()
        answers = await asyncio.gather(*(self.ask(f"{url}/health", request) for url in where.values()))
        return {
            name: {"status": "down" if answer is None else "ok", "url": url}
            for (name, url), answer in zip(where.items(), answers, strict=True)
        }


def _parse(body: bytes) -> dict[str, Any]:
    try:
        value = from_json(body)
    except ValueError as error:
        raise RequestError(400, f"body: no JSON ({error})"[:300]) from None
    if not isinstance(value, dict):
        raise RequestError(400, "body: expected a JSON object")
    return value


def check_pictures(question: Mapping[str, Any], media: Media) -> None:
    """Let a question pass whose pictures are few, small and from allowed places; their pixels are not read.

    Raises:
        RequestError: 400.
    """
    messages = question.get("messages")
    turns = messages if isinstance(messages, list) else []
    contents = [turn.get("content") for turn in turns if isinstance(turn, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict)]
    addresses = [part["image_url"] for part in parts if "image_url" in part]
    if len(addresses) > MAX_PICTURES:
        raise RequestError(400, f"expected {MAX_PICTURES} images at most, got {len(addresses)}", "image_count")
    for address in addresses:
        url = address.get("url") if isinstance(address, dict) else address
        if not isinstance(url, str):
            raise RequestError(400, "image_url.url: expected a text", "image_url")
        if url.startswith("data:"):
            head(payload(url))
        else:
            media.check(url)


def build_app(gateway: Gateway) -> FastAPI:
    """The application: ``/v1/chat/completions``, ``/v1/completions``, ``/v1/models``, ``/health``, ``/metrics``."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await gateway.client.aclose()

    app = FastAPI(title="PaCo reward models", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    answer_errors(app)

    async def forward(request: Request) -> Response:
        authorise(request, gateway.api_key)
        return await gateway.forward(request)

    app.post("/v1/chat/completions")(forward)
    app.post("/v1/completions")(forward)

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        authorise(request, gateway.api_key)
        return as_json(await gateway.models(request))

    @app.get("/health")
    async def health(request: Request) -> Response:
        models = await gateway.health(request)
        well = bool(models) and all(one["status"] == "ok" for one in models.values())
        return as_json({"status": "ok" if well else "degraded", "models": models}, 200 if well else 503)

    @app.get("/health/{model}")
    async def health_of(model: str, request: Request) -> Response:
        models = await gateway.health(request)
        if model not in models:
            raise RequestError(404, f"model {model!r} is not served here", "model_not_found")
        return as_json(models[model], 200 if models[model]["status"] == "ok" else 503)

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        authorise(request, gateway.api_key)
        return Response(gateway.metrics(), media_type="text/plain; version=0.0.4")

    return app


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description="Several served models behind one port.")
    parser.add_argument("--root", type=Path, required=True, help="the project, whose registry holds the routes")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket that listens already")
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("--allow-media", action="append", default=[], metavar="PLACE", help="see serving.allowed_media")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    import uvicorn

    registry = Registry(args.root)
    key, media = os.environ.get(API_KEY), Media(args.allow_media)
    app = build_app(Gateway(lambda: routes(registry), timeout_s=args.timeout, api_key=key, media=media))
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_keep_alive=600)
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=args.fd)])


if __name__ == "__main__":
    main()
