"""A server's memory and connections are bounded, whatever is sent, and it answers the others meanwhile."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from PIL import Image

from paco_core.io.shards import encode_png
from paco_core.serving import http_server
from paco_core.serving.engines.answers import Batcher, GenerationRequest, ModelAnswer
from paco_core.serving.engines.pictures import DecodedPictures
from paco_core.serving.http_server import Budget
from tests.support.serving_fakes import CHAT, FakeModel, call, panel, served
from tests.support.waiting import until
from tests.unit.serving.test_app import GOOD, request, url_of

LIMIT_S = 60


class BlockedModel(FakeModel):
    """Answers when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def __call__(self, requests: Sequence[GenerationRequest]) -> list[ModelAnswer | Exception]:
        self.batches.append(list(requests))
        self.go.wait(LIMIT_S)
        return [ModelAnswer("Yes", "length") for _ in requests]


def test_without_room_for_its_pictures_a_request_is_sent_away_and_may_come_again() -> None:
    model, room = BlockedModel(), 2 * 8 * 8
    with served(model, max_batch=1, pictures=DecodedPictures(pixels=room, wait_s=0.2)) as (url, state):
        pair, other = ([url_of(encode_png(panel(n))) for n in numbers] for numbers in ((1, 2), (3, 4)))
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(call, url, CHAT, request(pair))
            until(lambda: bool(model.batches))
            status, answer, retry_after = call(url, CHAT, request(other))
            assert (status, answer["error"]["code"], answer["error"]["type"]) == (503, "busy", "server_error")
            assert retry_after is not None and int(retry_after) > 0
            assert "128 of 128 pixels" in answer["error"]["message"] and state.pictures.pixels == room
            shared = pool.submit(call, url, CHAT, request(pair))  # what is there needs no room
            model.go.set()
            assert first.result(LIMIT_S)[0] == shared.result(LIMIT_S)[0] == 200
        assert call(url, CHAT, request(other))[0] == 200 and state.pictures.pixels == room
        assert 'paco_refused_total{cause="busy"} 1.0' in state.metrics.text().decode()


def test_a_broken_picture_leaves_its_room_to_others() -> None:
    broken = base64.b64decode(url_of(encode_png(Image.effect_noise((8, 8), 90))).partition(",")[2])[:-30]
    with served(FakeModel(), pictures=DecodedPictures(pixels=2 * 8 * 8, wait_s=5)) as (url, state):
        for _ in range(3):
            assert call(url, CHAT, request([GOOD, url_of(broken)]))[0] == 400
        assert call(url, CHAT, request([url_of(encode_png(panel(1))), url_of(encode_png(panel(2)))]))[0] == 200
        assert state.pictures.pixels == 2 * 8 * 8


def test_a_batch_is_never_too_large_and_spares_the_neighbours_of_what_fails() -> None:
    batches: list[list[int]] = []

    def answer(items: Sequence[int]) -> list[int | Exception]:
        batches.append(list(items))
        if 7 in items:
            raise RuntimeError("the model crashed")
        return [ValueError("refused") if item == 2 else 10 * item for item in items]

    async def ask_all() -> list[int | BaseException]:
        batcher: Batcher[int, int] = Batcher(answer, 4)
        serving = asyncio.create_task(batcher.run())
        answers = await asyncio.gather(*(batcher.submit(n) for n in range(10)), return_exceptions=True)
        serving.cancel()
        return answers

    answers = asyncio.run(ask_all())
    assert [type(answers[n]) for n in (2, 7)] == [ValueError, RuntimeError]
    assert [answers[n] for n in range(10) if n not in (2, 7)] == [10 * n for n in range(10) if n not in (2, 7)]
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [4], [5], [6], [7], [8, 9]]


def test_bodies_that_exceed_what_a_server_holds_wait_outside() -> None:
    model = BlockedModel()
    with served(model, max_batch=1) as (url, state), ThreadPoolExecutor(1) as pool:
        state.body_budget = Budget(http_server.LEAST_BODY, "bytes of requests", wait_s=0.2)
        first = pool.submit(call, url, CHAT, request([GOOD, GOOD]))
        until(lambda: bool(model.batches))
        status, answer, retry_after = call(url, CHAT, request([GOOD, GOOD]))
        assert (status, retry_after, answer["error"]["code"]) == (503, "2", "busy")
        model.go.set()
        assert first.result(LIMIT_S)[0] == 200 and call(url, CHAT, request([GOOD, GOOD]))[0] == 200
        assert state.body_budget.used == 0
