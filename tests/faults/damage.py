"""Damages to a file, from a seed: what disks, copies, editors and other programs do to data."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
from ruamel.yaml import YAML

from tests.faults.hostile import places_of

DEEP = b"[" * 100_000
#: YAML of a few hundred bytes that unfolds to ten thousand million words.
BOMB = b"a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 10)
)
WORDS: list[Any] = [None, True, -1, 0, 1e400, float("nan"), "", "²", "../../x", [], {}, [[1]], "x" * 300, "\0"]
#: Values that a column of a table gets; the last one is of its neighbour.
CELLS: list[Callable[[pd.Series], Any]] = [
    lambda column: None, lambda column: -1, lambda column: 2**62, lambda column: float("nan"),
    lambda column: "../../x", lambda column: [[0, 0]] * len(column), lambda column: [*column[1:], column[0]],
]  # fmt: skip
Damage = tuple[str, bytes]


def damages(data: bytes, form: str, rng: random.Random) -> Iterator[Damage]:
    """What a file may hold after a damage, with the damage's name.

    Args:
        form: "jsonl", "json", "yaml" and "parquet" get values of wrong types, too; "bytes" are of any kind.
    """
    yield "empty", b""
    yield "swapped", b'{"a": 1}\n' if form == "parquet" else b"PAR1 no such thing PAR1"
    yield "zeroed", bytes(len(data))
    yield "deep", DEEP
    for _ in range(4):
        at, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
        hole = bytes(min(512, len(data) - at))
        yield f"cut at {at}", data[:at]
        yield f"bit {bit} flipped at {at}", data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
        yield f"{len(hole)} bytes zeroed at {at}", data[:at] + hole + data[at + len(hole) :]
    if form == "jsonl":
        rows = [json.loads(line) for line in data.splitlines() if line.strip()]
        yield from _wrong_values(rows, rng, lambda tree: b"".join(json.dumps(row).encode() + b"\n" for row in tree))
    elif form == "json":
        yield from _wrong_values(json.loads(data), rng, lambda tree: json.dumps(tree).encode())
    elif form == "yaml":
        yield "alias bomb", BOMB
        tree = json.loads(json.dumps(YAML(typ="safe").load(data), default=str))
        yield from _wrong_values(tree, rng, lambda tree: json.dumps(tree).encode())  # YAML 1.2 holds JSON
    elif form == "parquet":
        yield from _wrong_tables(pd.read_parquet(io.BytesIO(data)), rng)


def _wrong_values(tree: Any, rng: random.Random, write: Callable[[Any], bytes]) -> Iterator[Damage]:
    """Trees of JSON in which one value is of another type or gone."""
    for _ in range(10):
        copy = json.loads(json.dumps(tree))
        owner, key = rng.choice(places_of(copy))
        word = rng.choice([*WORDS, "gone"])
        if word == "gone":
            del owner[key]
        else:
            owner[key] = word
        yield f"{key} = {str(word)[:20]!r}", write(copy)


def _wrong_tables(table: pd.DataFrame, rng: random.Random) -> Iterator[Damage]:
    yield "no rows", _parquet(table[:0])
    for number, change in enumerate(CELLS):
        column = rng.choice(list(table.columns))
        yield f"column {column}, change {number}", _parquet(table.assign(**{column: change(table[column])}))
    column = rng.choice(list(table.columns))
    yield f"column {column} is gone", _parquet(table.drop(columns=[column]))


def _parquet(table: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    return buffer.getvalue()
