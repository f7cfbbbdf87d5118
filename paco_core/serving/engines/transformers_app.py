"""The embedded engine: a small server of the OpenAI chat protocol around the scorer.

Started as ``python -m paco_core.serving.engines.transformers_app --model DIR --served-model-name NAME ...``.
It is a Starlette application: FastAPI needs 10% of the time of a request, and none of its features is used.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paco_core.io.files import DataError
from paco_core.io.imports import gc_paused, without
from paco_core.io.numbers import PORTS, whole_number
from paco_core.reward_model.quantised import LIBRARIES
from paco_core.reward_model.yes_probability import PairQuery
from paco_core.serving.engines.answers import Batcher, Count, GenerationRequest, ModelAnswer, Usage, counter
from paco_core.serving.engines.pictures import DecodedPictures
from paco_core.serving.http_server import ERRORS, SameSite, as_json, authorise, body_budget, body_of, error_response
from paco_core.serving.protocol import API_KEY, ChatRequest, RequestError

LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
log = logging.getLogger("paco.serving")


@dataclass(frozen=True)
class Tally(Collector):
    """A Prometheus counter whose value is read from a function."""

    name: str
    text: str
    read: Callable[[], int]

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(self.name, self.text, value=self.read())


class ServerMetrics:
    """Counters of one server, in a separate registry."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter("paco_requests", "Requests by HTTP status", ["status"], registry=self._registry)
        self.refusals = Counter("paco_refused", "Refused requests by cause", ["cause"], registry=self._registry)
        self.latency = Histogram("paco_request_seconds", "Time to answer", buckets=LATENCIES, registry=self._registry)
        self.batch = Histogram("paco_batch_size", "Requests a forward pass", buckets=BATCHES, registry=self._registry)

    def tally(self, name: str, text: str, read: Callable[[], int]) -> None:
        """Add a counter ``name`` with the value of ``read()``."""
        self._registry.register(Tally(name, text, read))

    def text(self) -> bytes:
        return generate_latest(self._registry)


class ModelServer:
    """The state behind the handlers: one model under one name.

    Args:
        answer: answers a batch of requests.
        count: counts the tokens of a prompt and its answer.
        pictures: cache of decoded images; None = one with the default limit.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[GenerationRequest]], Sequence[Any]],
        name: str,
        *,
        max_batch: int,
        count: Count,
        answer_tokens: dict[str, int] | None = None,
        api_key: str | None = None,
        pictures: DecodedPictures | None = None,
    ) -> None:
        self.name, self.answer_tokens, self.api_key, self._count = name, answer_tokens, api_key, count
        self.metrics = ServerMetrics()
        self.body_budget, self.pictures = body_budget(), pictures or DecodedPictures()
        self.metrics.tally("paco_pictures_decoded", "Pictures decoded", lambda: self.pictures.num_decoded)
        self.metrics.tally("paco_pictures_known", "Pictures decoded before", lambda: self.pictures.num_hits)
        self.batcher: Batcher[GenerationRequest, ModelAnswer] = Batcher(answer, max_batch, self.metrics.batch.observe)
        self.started = int(time.time())

    async def chat(self, body: bytes) -> dict[str, Any]:
        """Answer a chat request."""
        request = ChatRequest.parse(body)
        if request.model != self.name:
            message = f"model {request.model!r} is not served here; this server serves {self.name!r}"
            raise RequestError(404, message, "model_not_found")
        urls, text = request.pictures_and_text()
        ids = tuple(request.logprob_token_ids) if request.logprob_token_ids is not None else None
        with_logprobs = bool(request.logprobs)
        async with self.pictures.lend(urls) as (first, second):
            query = PairQuery(first, second, text)
            generation_request = GenerationRequest(
                query, request.new_tokens, with_logprobs, request.top_logprobs or 0, ids
            )
            answer = await self.batcher.submit(generation_request)
            return completion(answer, self.name, with_logprobs, self._count(generation_request, answer))

    def models(self) -> dict[str, Any]:
        card = {"id": self.name, "object": "model", "created": self.started, "owned_by": "paco"}
        if self.answer_tokens is not None:
            card["answer_tokens"] = self.answer_tokens
        return {"object": "list", "data": [card]}


def completion(answer: ModelAnswer, model: str, logprobs: bool, usage: Usage) -> dict[str, Any]:
    """A chat completion in OpenAI's format."""
    content = None
    if logprobs and answer.chosen is not None:
        rivals = [rival.as_dict() for rival in answer.rivals]
        content = {"content": [{**answer.chosen.as_dict(), "top_logprobs": rivals}]}
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": answer.text},
        "logprobs": content,
        "finish_reason": answer.finish_reason,
    }
    now = time.time_ns()
    return {
        "id": f"chatcmpl-{now:x}",
        "object": "chat.completion",
        "created": now // 1_000_000_000,
        "model": model,
        "choices": [choice],
        "usage": usage.as_dict(),
    }


def build_scoring_app(server: ModelServer, host: str = "127.0.0.1") -> Starlette:
    """The application: ``/v1/models``, ``/v1/chat/completions``, ``/health``, ``/metrics``.

    Args:
        host: where it listens.
    """

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        worker = asyncio.create_task(server.batcher.run())
        yield
        worker.cancel()

    def count_refusal(error: RequestError) -> None:
        server.metrics.refusals.labels(error.code).inc()

    async def health(_request: Request) -> Response:
        return as_json({"status": "ok", "model": server.name})

    async def metrics(request: Request) -> Response:
        authorise(request, server.api_key)
        return Response(server.metrics.text(), media_type="text/plain; version=0.0.4")

    async def models(request: Request) -> Response:
        authorise(request, server.api_key)
        return as_json(server.models())

    async def chat(request: Request) -> Response:
        started = time.perf_counter()
        status = 200
        try:
            authorise(request, server.api_key)
            async with body_of(request, server.body_budget) as body:
                return as_json(await server.chat(body))
        except RequestError as error:
            status = error.status
            count_refusal(error)
            return error_response(error)
        except Exception as error:
            status = 500
            log.exception("a request failed")
            server.metrics.refusals.labels(type(error).__name__).inc()
            message = f"the model failed on this pair ({type(error).__name__})"
            return error_response(RequestError(500, message, "model_failed"))
        finally:
            server.metrics.requests.labels(str(status)).inc()
            server.metrics.latency.observe(time.perf_counter() - started)

    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/models", models),
            Route("/health", health),
            Route("/metrics", metrics),
        ],
        middleware=[Middleware(SameSite, host=host, on_refusal=count_refusal)],
        exception_handlers=ERRORS,
        lifespan=lifespan,
    )


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Serve a pairwise reward model (OpenAI chat protocol).")
    parser.add_argument("--model", required=True, help="a folder of a Qwen2.5-VL or Qwen3-VL, or a hub id")
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--host", default="127.0.0.1", help="where it listens, by what name clients call it")
    parser.add_argument("--port", type=whole_number(*PORTS), default=0)
    parser.add_argument("--fd", type=whole_number(0), help="inherited socket that is already bound")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--quantization", choices=sorted(LIBRARIES), help="see serving.quantization")
    parser.add_argument("--threads", type=whole_number(1), default=1)
    parser.add_argument("--max-batch", type=whole_number(1), default=96)
    parser.add_argument(
        "--max-model-len", type=whole_number(1, 2**30), help="tokens of the longest question and its answer"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Load the model and serve until SIGTERM.

    Raises:
        SystemExit: when the model is invalid, with the reason, which is the last line of the server's log.
    """
    args = _arguments(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        _serve(args)
    except DataError as error:
        raise SystemExit(str(error)) from None


def _serve(args: argparse.Namespace) -> None:
    began = time.monotonic()
    from paco_core.io.local_server import run_server
    from paco_core.serving.engines.answers import Answerer

    folder = Path(args.model)
    with gc_paused(), without("sklearn"):
        from paco_core.reward_model.scorer import Scorer

        scorer = Scorer(
            folder if folder.exists() else args.model,
            device=args.device,
            dtype=args.dtype,
            threads=args.threads,
            max_batch=args.max_batch,
            window=args.max_model_len,
            quantization=args.quantization,
        )
        scorer.warm_up()
    answerer = Answerer(scorer)
    server = ModelServer(
        answerer,
        args.served_model_name,
        max_batch=args.max_batch,
        answer_tokens=answerer.answer_tokens,
        count=counter(scorer.network),
        api_key=os.environ.get(API_KEY),
    )
    network = scorer.network
    server.metrics.tally("paco_panels_encoded", "Pictures through the vision tower", lambda: network.encoded)
    server.metrics.tally("paco_panels_known", "Pictures whose vision features were kept", lambda: network.reused)
    log.info("%s loaded from %s in %.1f s", args.served_model_name, args.model, time.monotonic() - began)
    is_inherited = args.fd is not None
    listener = socket.socket(fileno=args.fd) if is_inherited else socket.create_server((args.host, args.port))
    log.info("serving %s on http://%s:%d", args.served_model_name, *listener.getsockname()[:2])
    run_server(build_scoring_app(server, args.host), listener)


if __name__ == "__main__":
    main()
