"""Gateway: several models behind one port. It forwards each request to the server of the requested model.

The routes are the project's registry, which is read at every request, so servers may start and stop at any time. Bodies
are forwarded unchanged, and responses are streamed. The gateway checks limits before it forwards a request, because
some engines have no limits.

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

from paco_core.io.local_server import run_server
from paco_core.io.numbers import decimal_number, whole_number
from paco_core.serving.engines.pictures import head, payload
from paco_core.serving.http_server import ERRORS, SameSite, as_json, authorise, body_budget, body_of
from paco_core.serving.protocol import API_KEY, ChatRequest, RequestError
from paco_core.serving.servers.registry import GATEWAY, Registry

PROBE_S = 5.0  # timeout of a health check
RETRY_AFTER_S = 2  # a supervisor notices a dead server within a second; an embedded server starts in seconds
#: Headers of one hop; ``origin`` goes with ``host``, and was compared with it here.
OURS = frozenset({"connection", "content-length", "host", "keep-alive", "origin", "transfer-encoding", "upgrade"})
log = logging.getLogger("paco.serving")


def routes(registry: Registry) -> dict[str, str | None]:
    """The address of each model that is served in this project; None if its server has died."""
    addresses: dict[str, str | None] = {}
    for name in registry.names():
        if name != GATEWAY and registry.is_recorded(name):
            record = registry.living(name)
            addresses[name] = None if record is None else record.url
    return addresses


class Gateway:
    """The state behind the handlers.

    Args:
        addresses: returns the address of each model, None for one that is down; called at every request.
        known_models: returns the names of models that were served here and may be served again.
        timeout_s: seconds to wait for a model's answer.
    """

    def __init__(
        self,
        addresses: Callable[[], Mapping[str, str | None]],
        *,
        timeout_s: float,
        known_models: Callable[[], Collection[str]] = tuple,
        api_key: str | None = None,
    ) -> None:
        self.addresses, self.known_models, self.api_key = addresses, known_models, api_key
        self.body_budget = body_budget()
        # On a reused connection, another caller could receive a late or repeated answer.
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
        self._refusals = Counter("paco_gateway_refused", "Refusals by cause", ["cause"], registry=self._metrics)

    def metrics(self) -> bytes:
        return generate_latest(self._metrics)

    def count_refusal(self, error: RequestError) -> None:
        self._refusals.labels(error.code).inc()

    def address(self, model: str) -> str:
        """The present address of a model.

        Raises:
            RequestError: 503 when it is down, 404 when it was never served here.
        """
        if (url := self.addresses().get(model)) is None:
            raise self.missing(model)
        return url

    def missing(self, model: str) -> RequestError:
        """The error for a model without an address: 503 if it may be served again, 404 if it was never served here."""
        addresses = self.addresses()
        if model in addresses or model in self.known_models():
            return _down(model, "it is not served at the moment; `paco serve up` serves it")
        served = ", ".join(repr(name) for name, url in sorted(addresses.items()) if url is not None) or "none"
        return RequestError(404, f"model {model!r} is not served here; served are: {served}", "model_not_found")

    async def forward(self, request: Request) -> Response:
        """Forward a request to the server of its model.

        Raises:
            RequestError: 400 for an invalid request, 404 for a model that was never served here, 502 when the server
                closes the connection, 503 when the server is down or the gateway busy, 504 after the timeout.
        """
        async with body_of(request, self.body_budget) as body:
            return await self._pass_on(request, body)

    async def _pass_on(self, request: Request, body: bytes) -> Response:
        began = time.perf_counter()
        question = ChatRequest.parse(body)
        model = question.model
        url = self.address(model) + request.url.path
        await asyncio.to_thread(check_pictures, question.pictures_and_text()[0])
        headers = {name: value for name, value in request.headers.items() if name not in OURS}
        try:
            forwarded = self.client.build_request(request.method, url, content=body, headers=headers)
            answer = await self.client.send(forwarded, stream=True)
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
        response_headers = {name: value for name, value in answer.headers.items() if name not in OURS}
        if "content-length" in answer.headers:  # clients detect an incomplete body
            response_headers["content-length"] = answer.headers["content-length"]
        return StreamingResponse(
            answer.aiter_raw(), answer.status_code, response_headers, background=BackgroundTask(answer.aclose)
        )

    async def fetch_json(self, server: str | None, path: str, request: Request) -> dict[str, Any] | None:
        """The JSON object at a path of a server; None if the server does not answer."""
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
        """The models of all servers that answer."""
        responses = await asyncio.gather(
            *(self.fetch_json(url, "/v1/models", request) for url in self.addresses().values())
        )
        return {
            "object": "list",
            "data": [card for cards in responses if cards is not None for card in cards.get("data", [])],
        }

    async def health(self, request: Request) -> dict[str, dict[str, str | None]]:
        """ "ok" or "down" for each model."""
        addresses = self.addresses()
        answers = await asyncio.gather(*(self.fetch_json(url, "/health", request) for url in addresses.values()))
        return {
            name: {"status": "down" if answer is None else "ok", "url": url}
            for (name, url), answer in zip(addresses.items(), answers, strict=True)
        }


def _down(model: str, why: str) -> RequestError:
    return RequestError(503, f"model {model!r}: {why}", "server_down", retry_after_s=RETRY_AFTER_S)


def check_pictures(urls: Sequence[str]) -> None:
    """Check that the images of a request are data URLs within the size limit. Their pixels are not decoded.

    Raises:
        RequestError: 400.
    """
    for url in urls:
        head(payload(url))


def build_gateway_app(gateway: Gateway, host: str = "127.0.0.1") -> Starlette:
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
        is_healthy = bool(models) and all(state["status"] == "ok" for state in models.values())
        return as_json({"status": "ok" if is_healthy else "degraded", "models": models}, 200 if is_healthy else 503)

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
        middleware=[Middleware(SameSite, host=host, on_refusal=gateway.count_refusal)],
        exception_handlers=ERRORS,
        lifespan=lifespan,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description="Several served models behind one port.")
    parser.add_argument("--root", type=Path, required=True, help="the project, whose registry holds the routes")
    parser.add_argument("--fd", type=whole_number(0), required=True, help="inherited socket that listens already")
    parser.add_argument("--host", default="127.0.0.1", help="where it listens, by what name clients call it")
    parser.add_argument("--timeout", type=decimal_number(0), default=600.0)
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    registry = Registry(args.root)
    gateway = Gateway(
        lambda: routes(registry),
        known_models=lambda: {*registry.names()} - {GATEWAY},
        timeout_s=args.timeout,
        api_key=os.environ.get(API_KEY),
    )
    run_server(build_gateway_app(gateway, args.host), socket.socket(fileno=args.fd))


if __name__ == "__main__":
    main()
