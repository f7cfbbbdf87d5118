"""Several models behind one port: a request goes to the server of the model that it names.

The routes are the project's registry, read at every request: a server that comes or goes needs no word to the
gateway. Bodies pass unchanged in both directions; the answer is streamed. Limits are checked before anything is
passed on, so that an engine without limits of its own gets them here.

Started as ``python -m paco_core.serving.servers.gateway --root DIR --fd N``; see
:func:`paco_core.serving.servers.endpoint.gateway`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from paco_core.io.local_server import serve
from paco_core.io.numbers import decimal, whole
from paco_core.serving.engines.pictures import head, payload
from paco_core.serving.http_server import ERRORS, SameSite, as_json, authorise, bodies, body_of
from paco_core.serving.protocol import API_KEY, ChatRequest, RequestError
from paco_core.serving.servers.registry import GATEWAY, Registry

PROBE_S = 5.0  # a server's time to say how it is
RETRY_AFTER_S = 2  # a supervisor sees within a second that its server died, and an embedded one starts in a few
#: Headers of one hop; ``origin`` goes with ``host``, and was compared with it here.
OURS = frozenset({"connection", "content-length", "host", "keep-alive", "origin", "transfer-encoding", "upgrade"})
log = logging.getLogger("paco.serving")


def routes(registry: Registry) -> dict[str, str | None]:
    """Address of each model that is served in this project; None where its server died and left its record."""
    found: dict[str, str | None] = {}
    for name in registry.names():
        if name != GATEWAY and registry.is_recorded(name):
            record = registry.living(name)
            found[name] = None if record is None else record.url
    return found


class Gateway:
    """The state behind the handlers.

    Args:
        where: the address of each model, None where it is down; asked at every request.
        known: names of models that were served here and may be again.
        timeout_s: seconds to wait for a model's answer.
    """

    def __init__(
        self,
        where: Callable[[], Mapping[str, str | None]],
        *,
        timeout_s: float,
        known: Callable[[], Collection[str]] = tuple,
        api_key: str | None = None,
    ) -> None:
        self.where, self.known, self.api_key = where, known, api_key
        self.bodies = bodies()
        # On a reused connection, a late or repeated answer would go to another caller.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self.client = httpx.AsyncClient(
            timeout=httpx.Timeout(timeout_s, connect=PROBE_S), limits=limits, trust_env=False
        )
        self._metrics = CollectorRegistry()
        labels = ["model", "status"]
        self._requests = Counter(
            "paco_gateway_requests", "Requests by model and status", labels, registry=self._metrics
        )
        self._seconds = Histogram("paco_gateway_seconds", "Time to the first byte", ["model"], registry=self._metrics)
        self._refused = Counter("paco_gateway_refused", "Refusals by cause", ["cause"], registry=self._metrics)

    def metrics(self) -> bytes:
        return generate_latest(self._metrics)

    def count_refusal(self, error: RequestError) -> None:
        self._refused.labels(error.code).inc()

    def address(self, model: str) -> str:
        """Where a model is served now.

        Raises:
            RequestError: 503 for one that is down, 404 for one that was never served here.
        """
        if (url := self.where().get(model)) is None:
            raise self.missing(model)
        return url

    def missing(self, model: str) -> RequestError:
        """What to answer for a model without an address: it may come again, or it was never served here."""
        where = self.where()
        if model in where or model in self.known():
            return _down(model, "it is not served at the moment; `paco serve up` serves it")
        served = ", ".join(repr(name) for name, url in sorted(where.items()) if url is not None) or "none"
        return RequestError(404, f"model {model!r} is not served here; served are: {served}", "model_not_found")

    async def forward(self, request: Request) -> Response:
        """Pass a request on to the server of its model.

        Raises:
            RequestError: 400 for what is no request of the protocol, 404 for a model that was never served here, 503
                where its server is down or the gateway busy, 502 where it breaks off, 504 where it does not answer in
                time.
        """
        async with body_of(request, self.bodies) as body:
            return await self._pass_on(request, body)

    async def _pass_on(self, request: Request, body: bytes) -> Response:
        began = time.perf_counter()
        question = ChatRequest.parse(body)
        model = question.model
        url = self.address(model) + request.url.path
        await asyncio.to_thread(check_pictures, question.pictures_and_text()[0])
        headers = {name: value for name, value in request.headers.items() if name not in OURS}
        try:
            onward = self.client.build_request(request.method, url, content=body, headers=headers)
            answer = await self.client.send(onward, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            self._requests.labels(model, "503").inc()
            raise _down(model, f"its server is down ({type(error).__name__})") from None
        except httpx.TimeoutException:
            self._requests.labels(model, "504").inc()
            raise RequestError(504, f"{model} does not answer in time", "timeout") from None
        except httpx.TransportError as error:
            self._requests.labels(model, "502").inc()
            message = f"the server of {model} dropped the connection ({type(error).__name__})"
            raise RequestError(502, message, "server_down") from None
        self._requests.labels(model, str(answer.status_code)).inc()
        self._seconds.labels(model).observe(time.perf_counter() - began)
        kept = {name: value for name, value in answer.headers.items() if name not in OURS}
        if "content-length" in answer.headers:  # so that half a body is seen to be half
            kept["content-length"] = answer.headers["content-length"]
        return StreamingResponse(answer.aiter_raw(), answer.status_code, kept, background=BackgroundTask(answer.aclose))

    async def ask(self, server: str | None, path: str, request: Request) -> dict[str, Any] | None:
        """The JSON object at a path of a server; None when it is down or does not answer."""
        if server is None:
            return None
        key = request.headers.get("authorization")
        try:
            headers = {"authorization": key} if key else None
            answer = await self.client.get(server + path, timeout=PROBE_S, headers=headers)
            value = answer.raise_for_status().json() if answer.content else {}
        except (httpx.HTTPError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    async def models(self, request: Request) -> dict[str, Any]:
        """The cards of all models whose servers answer."""
        lists = await asyncio.gather(*(self.ask(url, "/v1/models", request) for url in self.where().values()))
        return {"object": "list", "data": [card for one in lists if one is not None for card in one.get("data", [])]}

    async def health(self, request: Request) -> dict[str, dict[str, str | None]]:
        """ "ok" or "down" for each model."""
        where = self.where()
        answers = await asyncio.gather(*(self.ask(url, "/health", request) for url in where.values()))
        return {
            name: {"status": "down" if answer is None else "ok", "url": url}
            for (name, url), answer in zip(where.items(), answers, strict=True)
        }


def _down(model: str, why: str) -> RequestError:
    return RequestError(503, f"model {model!r}: {why}", "server_down", retry_after_s=RETRY_AFTER_S)


def check_pictures(urls: Sequence[str]) -> None:
    """Let a request pass whose pictures are small and in data URLs. The gateway does not decode their pixels.

    Raises:
        RequestError: 400.
    """
    for url in urls:
        head(payload(url))


def build_app(gateway: Gateway, host: str = "127.0.0.1") -> Starlette:
    """The application: ``/v1/chat/completions``, ``/v1/models``, ``/health``, ``/metrics``.

    Args:
        host: where it listens.
    """

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        await gateway.client.aclose()

    async def forward(request: Request) -> Response:
        try:
            authorise(request, gateway.api_key)
            return await gateway.forward(request)
        except RequestError as error:
            gateway.count_refusal(error)
            raise

    async def models(request: Request) -> Response:
        authorise(request, gateway.api_key)
        return as_json(await gateway.models(request))

    async def health(request: Request) -> Response:
        models = await gateway.health(request)
        well = bool(models) and all(one["status"] == "ok" for one in models.values())
        return as_json({"status": "ok" if well else "degraded", "models": models}, 200 if well else 503)

    async def health_of(request: Request) -> Response:
        model = request.path_params["model"]
        state = (await gateway.health(request)).get(model)
        if state is None:
            raise gateway.missing(model)
        return as_json(state, 200 if state["status"] == "ok" else 503)

    async def metrics(request: Request) -> Response:
        authorise(request, gateway.api_key)
        return Response(gateway.metrics(), media_type="text/plain; version=0.0.4")

    return Starlette(
        routes=[
            Route("/v1/chat/completions", forward, methods=["POST"]),
            Route("/v1/models", models),
            Route("/health", health),
            Route("/health/{model}", health_of),
            Route("/metrics", metrics),
        ],
        middleware=[Middleware(SameSite, host=host, refused=gateway.count_refusal)],
        exception_handlers=ERRORS,
        lifespan=lifespan,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description="Several served models behind one port.")
    parser.add_argument("--root", type=Path, required=True, help="the project, whose registry holds the routes")
    parser.add_argument("--fd", type=whole(0), required=True, help="inherited socket that listens already")
    parser.add_argument("--host", default="127.0.0.1", help="where it listens, by what name clients call it")
    parser.add_argument("--timeout", type=decimal(0), default=600.0)
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    registry = Registry(args.root)
    gateway = Gateway(
        lambda: routes(registry),
        known=lambda: {*registry.names()} - {GATEWAY},
        timeout_s=args.timeout,
        api_key=os.environ.get(API_KEY),
    )
    serve(build_app(gateway, args.host), socket.socket(fileno=args.fd))


if __name__ == "__main__":
    main()
