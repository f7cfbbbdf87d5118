"""The embedded engine: a small server of the OpenAI chat protocol around the scorer.

Started as ``python -m paco_core.serving.engines.transformers_app --model DIR --served-model-name NAME ...``.
The handlers validate by hand-picked pydantic models instead of FastAPI's signature machinery, which keeps
the cost of a request well below that of a forward pass of a small model.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import json
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from paco_core.reward_model.yes_probability import PairQuery
from paco_core.serving.engines.answering import Answer, Ask
from paco_core.serving.engines.batching import Batcher
from paco_core.serving.engines.metrics import ServerMetrics
from paco_core.serving.engines.pictures import Pictures
from paco_core.serving.protocol import ChatRequest, RequestError
from paco_core.serving.transport import API_KEY

MAX_BODY = 24 << 20  # two pictures of the largest accepted size, as base64
DECODE_APART = 256 << 10  # longer data URLs are decoded beside the event loop
log = logging.getLogger("paco.serving")


class Server:
    """The state behind the handlers: one model under one name."""

    def __init__(
        self,
        answer: Callable[[Sequence[Ask]], Sequence[Any]],
        name: str,
        *,
        max_batch: int,
        answer_tokens: dict[str, int] | None = None,
        api_key: str | None = None,
    ) -> None:
        self.name, self.answer_tokens, self._api_key = name, answer_tokens, api_key
        self.metrics = ServerMetrics()
        self.pictures = Pictures()
        self.batcher: Batcher[Ask, Answer] = Batcher(answer, max_batch, self.metrics.batch.observe)
        self.started = int(time.time())

    def authorise(self, request: Request) -> None:
        if self._api_key is None:
            return
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._api_key.encode()):
            raise RequestError(401, "wrong or missing API key", "invalid_api_key")

    async def body(self, request: Request) -> bytes:
        """The request's body, refused as soon as it is known to be too large."""
        limit = RequestError(413, f"request body exceeds {MAX_BODY} bytes", "body_too_large")
        declared = request.headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > MAX_BODY:
            raise limit
        chunks, size = [], 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > MAX_BODY:
                raise limit
            chunks.append(chunk)
        return b"".join(chunks)

    async def chat(self, body: bytes) -> dict[str, Any]:
        """Answer a chat request."""
        request = ChatRequest.parse(body)
        if request.model != self.name:
            message = f"model {request.model!r} is not served here; this server serves {self.name!r}"
            raise RequestError(404, message, "model_not_found")
        urls, text = request.pictures_and_text()
        before = self.pictures.decoded
        if max(map(len, urls)) > DECODE_APART:
            images = [await asyncio.to_thread(self.pictures.get, url) for url in urls]
        else:
            images = [self.pictures.get(url) for url in urls]
        self.metrics.decoded.inc(self.pictures.decoded - before)
        ids = tuple(request.logprob_token_ids) if request.logprob_token_ids is not None else None
        query = PairQuery(images[0], images[1], text)
        answer = await self.batcher.ask(Ask(query, request.max_tokens, request.logprobs, request.top_logprobs, ids))
        return completion(answer, self.name, request.logprobs)

    def models(self) -> dict[str, Any]:
        card = {"id": self.name, "object": "model", "created": self.started, "owned_by": "paco"}
        if self.answer_tokens is not None:
            card["answer_tokens"] = self.answer_tokens
        return {"object": "list", "data": [card]}


def completion(answer: Answer, model: str, logprobs: bool) -> dict[str, Any]:
    """A chat completion in OpenAI's shape."""
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
    }


def _json(value: Any, status: int = 200) -> Response:
    return Response(json.dumps(value), status, media_type="application/json")


def build_app(server: Server) -> FastAPI:
    """The application: ``/v1/models``, ``/v1/chat/completions``, ``/health``, ``/metrics``."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        worker = asyncio.create_task(server.batcher.run())
        yield
        worker.cancel()

    app = FastAPI(title="PaCo reward model", lifespan=lifespan, docs_url=None, redoc_url=None)

    @app.exception_handler(HTTPException)
    async def http_error(_request: Request, error: HTTPException) -> Response:
        return _json(RequestError(error.status_code, str(error.detail)).body(), error.status_code)

    @app.exception_handler(RequestError)
    async def refusal(_request: Request, error: RequestError) -> Response:
        return _json(error.body(), error.status)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok", "model": server.name}

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        server.authorise(request)
        return Response(server.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        server.authorise(request)
        return _json(server.models())

    async def chat(request: Request) -> Response:
        started = time.perf_counter()
        status = 200
        try:
            server.authorise(request)
            return _json(await server.chat(await server.body(request)))
        except RequestError as error:
            status = error.status
            server.metrics.refused.labels(error.code).inc()
            return _json(error.body(), status)
        except Exception as error:
            status = 500
            log.exception("a request failed")
            server.metrics.refused.labels(type(error).__name__).inc()
            message = f"the model failed on this pair ({type(error).__name__})"
            return _json(RequestError(500, message, "model_failed").body(), 500)
        finally:
            server.metrics.requests.labels(str(status)).inc()
            server.metrics.latency.observe(time.perf_counter() - started)

    schema = {"requestBody": {"content": {"application/json": {"schema": ChatRequest.model_json_schema()}}}}
    app.post("/v1/chat/completions", openapi_extra=schema)(chat)
    return app


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Serve a pairwise reward model (OpenAI chat protocol).")
    parser.add_argument("--model", required=True, help="a Qwen2.5-VL folder, or a hub id")
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--fd", type=int, help="inherited socket that is already bound")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--max-batch", type=int, default=96)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Load the model and serve until SIGTERM."""
    args = _arguments(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    began = time.monotonic()
    import uvicorn

    from paco_core.reward_model.scorer import Scorer
    from paco_core.serving.engines.answering import Answerer

    folder = Path(args.model)
    scorer = Scorer(
        folder if folder.exists() else args.model,
        device=args.device,
        dtype=args.dtype,
        threads=args.threads,
        max_batch=args.max_batch,
    )
    answerer = Answerer(scorer)
    server = Server(
        answerer,
        args.served_model_name,
        max_batch=args.max_batch,
        answer_tokens=answerer.answer_tokens,
        api_key=os.environ.get(API_KEY),
    )
    log.info("%s loaded from %s in %.1f s", args.served_model_name, args.model, time.monotonic() - began)
    given = args.fd is not None
    bound = socket.socket(fileno=args.fd) if given else socket.create_server((args.host, args.port))
    config = uvicorn.Config(
        build_app(server), log_level="warning", access_log=False, timeout_keep_alive=600, timeout_graceful_shutdown=2
    )
    log.info("serving %s on http://%s:%d", args.served_model_name, *bound.getsockname()[:2])
    uvicorn.Server(config).run(sockets=[bound])


if __name__ == "__main__":
    main()
