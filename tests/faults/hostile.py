"""Inputs that nobody honest sends, made by hypothesis from a seed, and what an answer to one has to be."""

from __future__ import annotations

import copy
import http.client
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from tests.faults.verdicts import RAW, Outcome

Breach = tuple[Outcome, str] | None
PATIENCE_S = 20.0
ODD = [
    None, True, -1, 0, 2**31, 2**63, 10**400, -0.0, 1e308, float("nan"), float("inf"), float("-inf"), "", " ", "\0",
    "²", "٣", "\ud800", "x" * 20_000, "9" * 5_000, "../../etc/passwd", "%00", "<script>", [], {}, [[]], {"": None},
]  # fmt: skip
DEEP = "[" * 100_000
scalars = st.sampled_from(ODD) | st.integers() | st.floats() | st.text(max_size=40)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)


def each(strategy: st.SearchStrategy[Any], count: int, act: Callable[[Any], object]) -> None:
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
        places = list(_places(value))
        if not places:
            break
        owner, key = places[draw(st.integers(0, len(places) - 1))]
        how = draw(st.sampled_from(["other", "other", "gone", "twice", "inside"]))
        if how == "gone":
            del owner[key]
        elif how == "twice" and isinstance(owner, list):
            owner.append(copy.deepcopy(owner[key]))
        elif how == "inside":
            owner[key] = [owner[key]]
        else:
            owner[key] = draw(anything)
    return value


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _places(inner)


def encoded(value: Any) -> bytes:
    """JSON as lenient programs write it: NaN and lone surrogates included."""
    return json.dumps(value).encode()


def bodies(good: Any) -> st.SearchStrategy[bytes]:
    """Changed values, cut texts, wrong encodings, deep nesting, and plain noise."""
    text = encoded(good)
    cut = st.integers(0, len(text) - 1).map(lambda n: text[:n])
    flipped = st.tuples(st.integers(0, len(text) - 1), st.integers(1, 255)).map(
        lambda at: text[: at[0]] + bytes([text[at[0]] ^ at[1]]) + text[at[0] + 1 :]
    )
    deep = st.sampled_from([DEEP, DEEP + "]" * len(DEEP), '{"a":' * 50_000, f'{{"model": {DEEP}'])
    others = [cut, flipped, st.binary(max_size=200), anything.map(encoded), deep.map(str.encode)]
    return st.one_of(*[changed(good).map(encoded)] * 4, *others)


#: Pieces of paths that programs stumble over.
pieces = st.text(max_size=12) | st.sampled_from([str(odd) for odd in ODD if str(odd).isprintable()])


def quoted(piece: str) -> str:
    return quote(piece.encode("utf-8", "surrogatepass"), safe="")


@dataclass(frozen=True)
class Reply:
    """An answer over HTTP; status 0 where the connection ended without one, None where it hangs."""

    status: int | None
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name), "")

    def json(self) -> Any:
        return json.loads(self.body)


def send(
    url: str, method: str, path: str, body: bytes | None = None, *, patience_s: float = PATIENCE_S, **headers: str
) -> Reply:
    """One request on a connection of its own; a name in ``headers`` has ``_`` for ``-``."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=patience_s)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json", **named})
        response = connection.getresponse()
        return Reply(response.status, response.read(), tuple(response.getheaders()))
    except TimeoutError:
        return Reply(None)
    except (OSError, http.client.HTTPException):
        return Reply(0)
    finally:
        connection.close()


def shout(url: str, data: bytes) -> Reply:
    """Bytes that need be no HTTP; the first line of what comes back."""
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE_S) as stream:
            stream.sendall(data)
            stream.shutdown(socket.SHUT_WR)
            answer = stream.recv(65536)
    except TimeoutError:
        return Reply(None)
    except OSError:
        return Reply(0)
    head = answer.split(b" ", 2)
    return Reply(int(head[1]) if len(head) > 1 and head[1].isdigit() else 0, answer)


def answered(reply: Reply) -> Breach:
    """What is wrong with how a server met an input, whatever it thinks of it."""
    if reply.status is None:
        return "unclear", f"no answer within {PATIENCE_S:g} s"
    if reply.status == 0:
        return "unclear", "the connection ended without an answer"
    if any(raw.encode() in reply.body for raw in RAW):
        return "unclear", "a raw traceback in the answer"
    if reply.status == 503 and reply.header("retry-after"):
        return None
    if reply.status >= 500:
        return "unclear", f"HTTP {reply.status}: {reply.body[:200]!r}"
    if reply.status >= 400 and len(reply.body) < 8:
        return "unclear", f"HTTP {reply.status} without a word"
    return None
