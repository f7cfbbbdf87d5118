"""How fast a served reward model answers, as its callers see it."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from paco_core.reward_model.golden import FILE as GOLDEN_FILE
from paco_core.reward_model.golden import read_golden
from paco_core.reward_model.instructions import render
from paco_core.reward_model.yes_probability import PairQuery
from paco_core.serving.protocol import ServingError

if TYPE_CHECKING:
    from PIL import Image

    from paco_core.serving.servers.endpoint import RewardEndpoint

SIDE = 64  # pixels of a made-up picture, where the model has no golden pair to take the size from
ALONE, TOGETHER = 20, 96  # questions asked one at a time, and all at once


@dataclass(frozen=True)
class Speed:
    """Seconds for a question that is asked alone, and answers a second when many are in flight."""

    p50_s: float
    p95_s: float
    per_second: float
    questions: int


def measure(endpoint: RewardEndpoint) -> Speed:
    """Ask a living server about pictures that it has not seen, so that no cache answers.

    Raises:
        ServingError: when it does not answer, fails a query, or serves another model.
    """
    seed = time.time_ns()
    with endpoint.client(plain=True) as client:
        client.score(_questions(endpoint, 2, seed))  # connects
        seconds = []
        for query in _questions(endpoint, ALONE, seed + 1):
            began = time.perf_counter()
            client.score([query])
            seconds.append(time.perf_counter() - began)
        many = _questions(endpoint, TOGETHER, seed + 2)
        began = time.perf_counter()
        scores = client.score(many)
        together = time.perf_counter() - began
    if failed := [score.cause for score in scores if score.failed]:
        raise ServingError(f"{endpoint.url}: {len(failed)} of {TOGETHER} queries failed, the first: {failed[0]}")
    twentieths = statistics.quantiles(seconds, n=20, method="inclusive")
    return Speed(twentieths[9], twentieths[18], TOGETHER / together, ALONE + TOGETHER)


def _questions(endpoint: RewardEndpoint, count: int, seed: int) -> list[PairQuery]:
    """Pairs of new pictures, of the size and with the text that the model's golden pair has."""
    size, text = (SIDE, SIDE), render("plain")
    if (endpoint.folder / GOLDEN_FILE).is_file():
        query = read_golden(endpoint.folder)[0].query
        size, text = query.first.size, query.instruction
    pixels = Random(seed)
    return [PairQuery(_picture(pixels, size), _picture(pixels, size), text) for _ in range(count)]


def _picture(pixels: Random, size: tuple[int, int]) -> Image.Image:
    from PIL import Image

    return Image.frombytes("RGB", (8, 8), pixels.randbytes(192)).resize(size)
