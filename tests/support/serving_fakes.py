"""A server around a made-up model, a server that follows a script, and engines that need no weights."""

from __future__ import annotations

import http.client
import json
import math
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from PIL import Image, ImageStat

from paco_core.reward_model.yes_probability import PairQuery
from paco_core.serving.engines import Launch
from paco_core.serving.engines.answers import GenerationRequest, ModelAnswer, TokenLogprob, Usage
from paco_core.serving.engines.transformers_app import ModelServer, build_scoring_app
from tests.support import children
from tests.support.loopback import JsonServer, Quiet, Raw, Step

NAME = "paco-reward@0123456789ab"
CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}


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
        self.batches: list[list[GenerationRequest]] = []

    @property
    def requests(self) -> list[GenerationRequest]:
        return [request for batch in self.batches for request in batch]

    def __call__(self, requests: Sequence[GenerationRequest]) -> list[ModelAnswer | Exception]:
        self.batches.append(list(requests))
        if any("crash" in request.query.instruction for request in requests):
            raise RuntimeError("the model crashed")
        return [self._answer(request) for request in requests]

    def _answer(self, request: GenerationRequest) -> ModelAnswer:
        share = true_score(request.query)
        yes, no = TokenLogprob("Yes", math.log(share)), TokenLogprob("No", math.log(1 - share))
        rivals = () if "mute" in request.query.instruction else (yes, no)
        return ModelAnswer("Yes", "length", yes, rivals)


def count(request: GenerationRequest, answer: ModelAnswer) -> Usage:
    """A token for each letter."""
    return Usage(len(request.query.instruction), len(answer.text))


def fake_server(model: FakeModel, name: str = NAME, **settings: Any) -> ModelServer:
    """The state of the real application around a made-up model."""
    return ModelServer(
        model, name, **{"max_batch": 32, "count": count, "answer_tokens": {"Yes": 5, "No": 6}, **settings}
    )


@contextmanager
def listening(app: Any, port: int = 0) -> Iterator[str]:
    """An application on a real socket, in a thread; gives its address."""
    bound = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(app, ws="none", log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        bound.close()


@contextmanager
def served(model: FakeModel, *, port: int = 0, name: str = NAME, **settings: Any) -> Iterator[tuple[str, ModelServer]]:
    """The real application around a made-up model, on a real socket."""
    state = fake_server(model, name, **settings)
    with listening(build_scoring_app(state), port) as url:
        yield url, state


def call(
    url: str, path: str = CHAT, body: bytes | Mapping[str, Any] | Iterator[bytes] | None = None, **headers: str
) -> tuple[int, Any, str | None]:
    """Status, JSON (or text) and ``Retry-After`` of an answer; a POST if there is a body."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    data = json.dumps(body).encode() if isinstance(body, Mapping) else body
    request_headers = {
        **({} if body is None else JSON),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    connection.request("GET" if body is None else "POST", path, data, request_headers)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, json.loads(text) if text.startswith("{") else text, response.getheader("Retry-After")


def completion(share: float = 0.75, model: str = NAME) -> bytes:
    rivals = [{"token": "Yes", "logprob": math.log(share)}, {"token": "No", "logprob": math.log(1 - share)}]
    logprobs = {"content": [{"token": "Yes", "logprob": math.log(share), "top_logprobs": rivals}]}
    return json.dumps({"model": model, "choices": [{"logprobs": logprobs}]}).encode()


def reply(status: int, body: bytes, **headers: str) -> Raw:
    return Raw(status, body, headers)


def half(handler: Quiet) -> None:
    """Promise more than is sent."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"model"')
    handler.close_connection = True


def silence(handler: Quiet) -> None:
    """Say nothing until the client is gone."""
    handler.connection.settimeout(60)
    handler.rfile.read(1)
    handler.close_connection = True


class Scripted(JsonServer):
    """Follows a script of replies to questions, the last one for ever; counts the questions."""

    def __init__(self, steps: Sequence[Step], name: str = NAME, listing: bytes | None = None) -> None:
        models = json.dumps({"data": [{"id": name}]}).encode()
        super().__init__(lambda _body, n: steps[min(n, len(steps) - 1)], listing=models if listing is None else listing)

    @property
    def num_requests(self) -> int:
        return len(self.bodies)


#: An engine without a model: answers with the name that it was given; `fail` makes it die, `hang` makes it
#: wait while starting.
ENGINE = """
import json, socket, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
name, descriptor, mode = sys.argv[1:]
if mode == "fail":
    raise SystemExit("weights of the wrong shape")
if mode == "hang":
    print("loading for ever", flush=True)
    time.sleep(600)
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


def fake_launch(mode: str) -> Callable[..., Launch]:
    """An engine that needs no weights, in place of the real ones."""

    def launch(_model: Path, name: str, _host: str, _port: int, descriptor: int, *_: object) -> Launch:
        return Launch([sys.executable, "-c", ENGINE, name, str(descriptor), mode], dict(os.environ), inherits=True)

    return launch


#: The real application around a made-up model that is a little slow; writes down every pair that it scores.
SCORER = """
import socket, sys, time
import uvicorn
from tests.support.serving_fakes import FakeModel, build_scoring_app, fake_server
name, descriptor, diary = sys.argv[1:]

class Diarist(FakeModel):
    def __call__(self, requests):
        time.sleep(0.05)
        with open(diary, "a") as stream:
            stream.writelines(f"{request.query.first.tobytes().hex()}\\n" for request in requests)
        return super().__call__(requests)

config = uvicorn.Config(build_scoring_app(fake_server(Diarist(), name)), log_level="error")
uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(descriptor))])
"""


def diarist_launch(diary: Path) -> Callable[..., Launch]:
    """An engine in a process of its own that writes down the first picture of every pair that it scores."""

    def launch(_model: Path, name: str, _host: str, _port: int, descriptor: int, *_: object) -> Launch:
        command = [sys.executable, "-c", SCORER, name, str(descriptor), str(diary)]
        return Launch(command, {**os.environ, "PYTHONPATH": children.PATH}, inherits=True)

    return launch
