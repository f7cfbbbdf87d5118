"""A server around a made-up model, a server that follows a script, and an engine that is one file."""

from __future__ import annotations

import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import uvicorn
from PIL import Image, ImageStat

from paco_core.reward_model.yes_probability import PairQuery
from paco_core.serving.engines.answering import Answer, Ask, TokenLogprob
from paco_core.serving.engines.transformers_app import Server, build_app

NAME = "paco-reward@0123456789ab"


def panel(number: int, size: int = 8) -> Image.Image:
    """A picture that is told apart by its pixels."""
    image = Image.new("RGB", (size, size), (number % 256, number // 256, 7))
    image.putpixel((0, 0), (255, number % 256, 0))
    return image


def queries(count: int, instruction: str = "Same?") -> list[PairQuery]:
    return [PairQuery(panel(2 * n), panel(2 * n + 1), instruction) for n in range(count)]


def true_score(query: PairQuery) -> float:
    """What the made-up model says: depends on both pictures and the text."""
    first, second = (ImageStat.Stat(image).mean[0] for image in (query.first, query.second))
    return 1 / (1 + math.exp((first - 0.5 * second) / 100 - len(query.instruction) / 50))


class FakeModel:
    """Answers with :func:`true_score`; remembers the batches; fails on instructions that say so."""

    def __init__(self) -> None:
        self.batches: list[list[Ask]] = []

    @property
    def asks(self) -> list[Ask]:
        return [ask for batch in self.batches for ask in batch]

    def __call__(self, asks: Sequence[Ask]) -> list[Answer | Exception]:
        self.batches.append(list(asks))
        if any("crash" in ask.query.instruction for ask in asks):
            raise RuntimeError("the model crashed")
        return [self._answer(ask) for ask in asks]

    def _answer(self, ask: Ask) -> Answer:
        share = true_score(ask.query)
        yes, no = TokenLogprob("Yes", math.log(share)), TokenLogprob("No", math.log(1 - share))
        rivals = () if "mute" in ask.query.instruction else (yes, no)
        return Answer("Yes", "length", yes, rivals)


@contextmanager
def served(
    model: FakeModel, *, port: int = 0, max_batch: int = 32, api_key: str | None = None
) -> Iterator[tuple[str, Server]]:
    """The real application around a made-up model, on a real socket."""
    bound = socket.create_server(("127.0.0.1", port))
    state = Server(model, NAME, max_batch=max_batch, answer_tokens={"Yes": 5, "No": 6}, api_key=api_key)
    config = uvicorn.Config(build_app(state), log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}", state
    finally:
        server.should_exit = True
        thread.join(30)
        bound.close()


def completion(share: float = 0.75, model: str = NAME) -> bytes:
    rivals = [{"token": "Yes", "logprob": math.log(share)}, {"token": "No", "logprob": math.log(1 - share)}]
    logprobs = {"content": [{"token": "Yes", "logprob": math.log(share), "top_logprobs": rivals}]}
    return json.dumps({"model": model, "choices": [{"logprobs": logprobs}]}).encode()


Step = Callable[[BaseHTTPRequestHandler], None]


def reply(status: int, body: bytes) -> Step:
    def step(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return step


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    """Close without an answer."""
    handler.close_connection = True


def half(handler: BaseHTTPRequestHandler) -> None:
    """Promise more than is sent."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"model"')
    handler.close_connection = True


def silence(handler: BaseHTTPRequestHandler) -> None:
    time.sleep(1.0)
    handler.close_connection = True


class Scripted(ThreadingHTTPServer):
    """Follows a script of replies to questions, the last one for ever; counts the questions."""

    daemon_threads = True

    def __init__(self, steps: Sequence[Step], name: str = NAME) -> None:
        script, state, lock = list(steps), self, threading.Lock()
        self.asked = 0
        models = json.dumps({"data": [{"id": name}]}).encode()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                reply(200, models)(self)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                with lock:
                    step = script[min(state.asked, len(script) - 1)]
                    state.asked += 1
                step(self)

            def log_message(self, *args: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Scripted:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()
        self.server_close()


#: An engine without a model: answers with the name that it was given; `fail` makes it die while starting.
ENGINE = """
import json, socket, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
name, descriptor, mode = sys.argv[1:]
if mode == "fail":
    raise SystemExit("weights of the wrong shape")
body = json.dumps({"data": [{"id": name}]}).encode()

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
server.socket = socket.socket(fileno=int(descriptor))
server.serve_forever()
"""
