"""A server's memory and connections are bounded, whatever is sent, and it answers the others meanwhile."""

from __future__ import annotations

import asyncio
import base64
import gc
import http.client
import io
import json
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from PIL import Image

from paco_core.io.http_client import Patience
from paco_core.io.shards import encode_png
from paco_core.reward_model.yes_probability import PairQuery
from paco_core.serving import http_server
from paco_core.serving.client import RewardClient
from paco_core.serving.engines import pictures
from paco_core.serving.engines.answers import Ask, Batcher, ModelAnswer
from paco_core.serving.engines.pictures import DecodedPictures
from paco_core.serving.http_server import Budget
from tests.support.serving_fakes import NAME, FakeModel, Scripted, completion, panel, queries, reply, served
from tests.support.waiting import until
from tests.unit.serving.test_app import GOOD, JSON, request, url_of

LIMIT_S = 60
SIDE = 4096  # the largest square that is accepted


class Held(FakeModel):
    """Answers when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def __call__(self, asks: Sequence[Ask]) -> list[ModelAnswer | Exception]:
        self.batches.append(list(asks))
        self.go.wait(LIMIT_S)
        return [ModelAnswer("Yes", "length") for _ in asks]


def plain(shade: int) -> str:
    """As large as is accepted and of one colour: few bytes in the file, 67 MB in memory."""
    buffer = io.BytesIO()
    Image.new("L", (SIDE, SIDE), shade).save(buffer, format="PNG")
    return url_of(buffer.getvalue())


def send(url: str, body: dict[str, Any]) -> tuple[int, str | None, dict[str, Any]]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=LIMIT_S)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), JSON)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, answer.getheader("Retry-After"), json.loads(text)


@pytest.mark.slow
def test_pictures_of_many_requests_are_not_in_memory_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eighteen requests of two pictures of 16.8 million pixels: 2.4 GB if all were decoded for as long as they wait."""
    decode, lock, alive = pictures.decode, threading.Lock(), [0]
    most = [0]

    def count(pixels: int) -> None:
        with lock:
            alive[0] += pixels
            most[0] = max(most[0], alive[0])

    def counted(opened: Image.Image) -> Image.Image:
        count(SIDE * SIDE)
        image = decode(opened)
        weakref.finalize(image, count, -SIDE * SIDE)
        return image

    monkeypatch.setattr(pictures, "decode", counted)
    bodies = [request([plain(2 * n), plain(2 * n + 1)]) for n in range(18)]

    class Blind(FakeModel):
        def __call__(self, asks: Sequence[Ask]) -> list[ModelAnswer | Exception]:
            return [ModelAnswer("Yes", "length") for _ in asks]

    with served(Blind()) as (url, state), ThreadPoolExecutor(len(bodies)) as pool:
        statuses = [answer[0] for answer in pool.map(lambda body: send(url, body), bodies)]
        assert state.pictures.pixels <= 4 * SIDE * SIDE
    print(f"\n{len(bodies)} requests at once: {most[0] / 1e6:.0f} million pixels in memory at most")
    assert statuses == [200] * len(bodies)
    # The batch that was answered last is kept until the next one is there.
    assert most[0] <= 2 * pictures.DECODED_PIXELS


def test_others_are_answered_while_a_picture_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decode, begun, go = pictures.decode, threading.Event(), threading.Event()

    def slow(opened: Image.Image) -> Image.Image:
        begun.set()
        go.wait(LIMIT_S)
        return decode(opened)

    monkeypatch.setattr(pictures, "decode", slow)
    with served(FakeModel()) as (url, _), ThreadPoolExecutor(1) as pool:
        large = url_of(encode_png(Image.new("L", (512, 512))))
        asked = pool.submit(send, url, request([large, large]))
        try:
            assert begun.wait(LIMIT_S)
            connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
            connection.request("GET", "/health")
            assert connection.getresponse().status == 200
            connection.close()
        finally:
            go.set()
        assert asked.result(LIMIT_S)[0] == 200


def test_without_room_for_its_pictures_a_request_is_sent_away_and_may_come_again() -> None:
    model, room = Held(), 2 * 8 * 8
    with served(model, max_batch=1, pictures=DecodedPictures(pixels=room, wait_s=0.2)) as (url, state):
        pair, other = ([url_of(encode_png(panel(n))) for n in numbers] for numbers in ((1, 2), (3, 4)))
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(send, url, request(pair))
            until(lambda: bool(model.batches))
            status, again, answer = send(url, request(other))
            assert (status, answer["error"]["code"], answer["error"]["type"]) == (503, "busy", "server_error")
            assert again is not None and int(again) > 0
            assert "128 of 128 pixels" in answer["error"]["message"] and state.pictures.pixels == room
            shared = pool.submit(send, url, request(pair))  # what is there needs no room
            model.go.set()
            assert first.result(LIMIT_S)[0] == shared.result(LIMIT_S)[0] == 200
        assert send(url, request(other))[0] == 200 and state.pictures.pixels == room
        assert 'paco_refused_total{cause="busy"} 1.0' in state.metrics.text().decode()


def test_the_client_tries_again_where_a_server_is_busy() -> None:
    busy = reply(503, json.dumps({"error": {"message": "the server is busy"}}).encode())
    with (
        Scripted([busy, busy, reply(200, completion(0.75))]) as server,
        RewardClient(server.url, NAME, patience=Patience(3, 0.001)) as client,
    ):
        assert client.score(queries(1))[0].value == pytest.approx(0.75)


def test_a_broken_picture_leaves_its_room_to_others() -> None:
    broken = base64.b64decode(url_of(encode_png(Image.effect_noise((8, 8), 90))).partition(",")[2])[:-30]
    with served(FakeModel(), pictures=DecodedPictures(pixels=2 * 8 * 8, wait_s=5)) as (url, state):
        for _ in range(3):
            assert send(url, request([GOOD, url_of(broken)]))[0] == 400
        assert send(url, request([url_of(encode_png(panel(1))), url_of(encode_png(panel(2)))]))[0] == 200
        assert state.pictures.pixels == 2 * 8 * 8


@pytest.mark.slow
def test_an_idle_server_keeps_nothing_of_its_last_batch() -> None:
    class Item:
        pass

    async def ask_once() -> weakref.ref[Item]:
        batcher: Batcher[Item, int] = Batcher(lambda items: [len(items)] * len(items), 4)
        serving = asyncio.create_task(batcher.run())
        item = Item()
        seen = weakref.ref(item)
        assert await batcher.ask(item) == 1
        del item
        for _ in range(3):  # the worker's thread and the loop each let go of it in a step of their own
            await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(batcher._worker, gc.collect)
        assert not serving.done()
        serving.cancel()
        return seen

    assert asyncio.run(ask_once())() is None


@pytest.mark.slow
def test_a_picture_is_decoded_once_for_all_who_send_it_together() -> None:
    with served(FakeModel()) as (url, state), RewardClient(url, NAME, in_flight=16) as client:
        first = panel(1, 512)
        client.score([PairQuery(first, panel(n), "Same?") for n in range(2, 42)])
        assert state.pictures.decoded == 41 and state.pictures.pixels == 512 * 512 + 40 * 8 * 8


def test_bodies_that_exceed_what_a_server_holds_wait_outside() -> None:
    model = Held()
    with served(model, max_batch=1) as (url, state), ThreadPoolExecutor(1) as pool:
        state.bodies = Budget(http_server.LEAST_BODY, "bytes of requests", wait_s=0.2)
        first = pool.submit(send, url, request([GOOD, GOOD]))
        until(lambda: bool(model.batches))
        status, again, answer = send(url, request([GOOD, GOOD]))
        assert (status, again, answer["error"]["code"]) == (503, "2", "busy")
        model.go.set()
        assert first.result(LIMIT_S)[0] == 200 and send(url, request([GOOD, GOOD]))[0] == 200
        assert state.bodies.used == 0
