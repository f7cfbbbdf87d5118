"""Inputs that nobody honest sends, made by hypothesis from a seed, and what an answer to one has to be."""

from __future__ import annotations

import copy
import http.client
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from tests.faults.verdicts import RAW, Breach

PATIENCE_S = 20.0
ODD = [
    None, True, -1, 0, 2**63, 10**400, -0.0, 1e308, float("nan"), float("inf"), "", "\0", "²", "\ud800",
    "x" * 20_000, "9" * 5_000, "../../etc/passwd", "%00", "<script>", [], {}, [[]], {"": None},
]  # fmt: skip
DEEP = "[" * 100_000
scalars = st.sampled_from(ODD) | st.integers() | st.floats() | st.text(max_size=40)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)


def run_examples(strategy: st.SearchStrategy[Any], count: int, act: Callable[[Any], object]) -> None:
    """Call ``act`` with so many examples, the same ones in each run."""

    @hypothesis.settings(
        max_examples=count, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @hypothesis.given(strategy)
    def body(example: Any) -> None:
        act(example)

    body()


@st.composite
def changed(draw: st.DrawFn, good: Any) -> Any:
    """A good value of JSON in which one place, or a few, hold something else or are gone."""
    value = copy.deepcopy(good)
    for _ in range(draw(st.integers(1, 3))):
        if not (places := places_of(value)):
            break
        owner, key = places[draw(st.integers(0, len(places) - 1))]
        if draw(st.integers(0, 3)) == 0:
            del owner[key]
        else:
            owner[key] = draw(anything | st.just([owner[key]]))
    return value


def places_of(value: Any) -> list[tuple[Any, Any]]:
    """Each mapping or list within a value of JSON, with each of its keys."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in items for place in ((value, key), *places_of(inner))]


def encoded(value: Any) -> bytes:
    """JSON as lenient programs write it: NaN and lone surrogates included."""
    return json.dumps(value).encode()


def bodies(good: Any) -> st.SearchStrategy[bytes]:
    """Changed values, cut texts, wrong encodings, deep nesting, and plain noise."""
    text = encoded(good)
    at = st.integers(0, len(text) - 1)
    flipped = st.tuples(at, st.integers(1, 255)).map(
        lambda flip: text[: flip[0]] + bytes([text[flip[0]] ^ flip[1]]) + text[flip[0] + 1 :]
    )
    deep = st.sampled_from([DEEP, '{"a":' * 50_000, f'{{"model": {DEEP}']).map(str.encode)
    noise = [at.map(lambda end: text[:end]), flipped, st.binary(max_size=200), anything.map(encoded), deep]
    return st.one_of(*[changed(good).map(encoded)] * 4, *noise)


@dataclass(frozen=True)
class Reply:
    """An answer over HTTP; status 0 where the connection ended without one, None where it hangs."""

    status: int | None
    body: bytes = b""
    retry_after: str | None = None

    def json(self) -> Any:
        return json.loads(self.body)


def send(url: str, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
    """One request on a connection of its own; a name in ``headers`` has ``_`` for ``-``."""
    header_fields = {key.replace("_", "-"): value for key, value in headers.items()}
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json", **header_fields})
        response = connection.getresponse()
        return Reply(response.status, response.read(), response.headers.get("Retry-After"))
    except TimeoutError:
        return Reply(None)
    except (OSError, http.client.HTTPException):
        return Reply(0)
    finally:
        connection.close()


def answered(reply: Reply) -> Breach:
    """What is wrong with how a server met an input, whatever it thinks of it."""
    if not reply.status:
        return "unclear", f"no answer within {PATIENCE_S:g} s" if reply.status is None else "hung up"
    if any(raw.encode() in reply.body for raw in RAW):
        return "unclear", "a raw traceback in the answer"
    if reply.status == 503 and reply.retry_after:
        return None
    if reply.status >= 500 or (reply.status >= 400 and len(reply.body) < 8):
        return "unclear", f"HTTP {reply.status}: {reply.body[:200]!r}"
    return None
