"""Damages to a file, from a seed: what disks, copies, editors and other programs do to data."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dvc_project.errors import DvcProjectError
from paco_core.config.params import ParamsError
from paco_core.io.files import DataError
from tests.faults.verdicts import Outcome
from tests.support import forked

Breach = tuple[Outcome, str] | None
LIMIT_S = 10.0  # for reading one small file
CLEAR = (DataError, ParamsError, DvcProjectError)  # what verbs print as one line
DEEP = b"[" * 100_000
#: YAML of a few hundred bytes that unfolds to ten thousand million words.
BOMB = b"a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 10)
)
WORDS: list[Any] = [None, True, -1, 0, 1e400, float("nan"), "", "²", "../../x", [], {}, [[1]], "x" * 300, "\0"]


@dataclass(frozen=True)
class Damage:
    """What is done to a file; ``data`` is what it holds then."""

    name: str
    data: bytes


def damages(data: bytes, rng: random.Random, number: int, other: bytes) -> Iterator[Damage]:
    """So many damages to a file of any kind: emptied, taken for ``other``, cut off, overwritten, bits flipped."""
    yield Damage("empty", b"")
    yield Damage("swapped", other)
    yield Damage("zeroed", bytes(len(data)))
    yield Damage("deep", DEEP)
    for n in range(max(0, number - 4)):
        at = rng.randrange(len(data))
        if n % 3 == 0:
            yield Damage(f"cut at {at}", data[:at])
        elif n % 3 == 1:
            bit = 1 << rng.randrange(8)
            yield Damage(f"bit {bit} flipped at {at}", data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
        else:
            hole = bytes(min(512, len(data) - at))
            yield Damage(f"{len(hole)} bytes zeroed at {at}", data[:at] + hole + data[at + len(hole) :])


def wrong_values(tree: Any, rng: random.Random, number: int, write: Callable[[Any], bytes]) -> Iterator[Damage]:
    """So many trees of JSON or YAML in which one value is of another type or gone, written by ``write``."""
    text = json.dumps(tree)
    for _ in range(number):
        copy = json.loads(text)
        places = list(_places(copy, ""))
        owner, key, where = places[rng.randrange(len(places))]
        word = rng.choice([*WORDS, "gone"])
        if word == "gone":
            del owner[key]
        else:
            owner[key] = word
        yield Damage(f"{where} = {str(word)[:20]!r}", write(copy))


def _places(value: Any, where: str) -> Iterator[tuple[Any, Any, str]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key, f"{where}/{key}"
        yield from _places(inner, f"{where}/{key}")


def read_as(
    read: Callable[[], Any], whole: Any, names: tuple[str, ...], sound: Callable[[Any], str | None], folder: Path
) -> Breach:
    """Judge how a damaged file is read: with a clear error, with nothing lost, or else.

    In a process of its own: a file may end the interpreter, or keep it busy for ever.

    Args:
        whole: what is read from the sound file.
        names: one of these is in a clear error.
        sound: what is wrong with a value that is read without an error; None where it is a possible one. A flipped
            bit in a name makes another name: that is for the checksums that DVC keeps of every out.
        folder: where the process works.
    """
    ended = forked.run(lambda: print("\n" + json.dumps(_judged(read, whole, names, sound))), folder, limit_s=LIMIT_S)
    if ended.code is None:
        return "unclear", f"hangs: takes more than {LIMIT_S} s"
    if ended.code:
        return "unclear", f"ended the interpreter with {ended.code}: {ended.text.strip()[:100]}"
    breach = json.loads(ended.text.splitlines()[-1])
    return None if breach is None else (breach[0], breach[1])


def _judged(read: Callable[[], Any], whole: Any, names: tuple[str, ...], sound: Callable[[Any], str | None]) -> Breach:
    try:
        found = read()
    except CLEAR as error:
        text = str(error)
        return None if any(name in text for name in names) else ("unclear", f"names no file: {text[:200]}")
    except Exception as error:
        return "unclear", f"raw {type(error).__name__}: {str(error)[:160]}"
    if _same(found, whole):
        return None
    fault = sound(found)
    return ("wrong", fault) if fault else None


def _same(found: Any, whole: Any) -> bool:
    try:
        return bool(found == whole)
    except ValueError:  # tables and arrays
        return False


def place(path: Path, data: bytes) -> None:
    """Put a damaged file in the place of a sound one (which may be a link)."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)
