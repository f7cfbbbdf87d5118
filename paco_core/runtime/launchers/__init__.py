"""Where work runs: on this machine, under accelerate, or on a Ray cluster. Chosen by the environment.

``PACO_LAUNCHER`` never stands in a stage's ``cmd``: DVC hashes that, and where a stage ran is no part of what it made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar

from paco_core.config.params import ParamsError

Name = Literal["local", "accelerate", "ray"]
VARIABLE = "PACO_LAUNCHER"
LAUNCHERS: tuple[Name, ...] = ("local", "accelerate", "ray")

P = TypeVar("P")
R = TypeVar("R")
#: Called once in each worker, with the number of workers; returns what works on one piece.
Make = Callable[[int], Callable[[P], R]]


def chosen() -> Name:
    """The launcher that the environment names.

    Raises:
        ParamsError: for one that does not exist.
    """
    name = os.environ.get(VARIABLE) or "local"
    if name not in LAUNCHERS:
        raise ParamsError(f"{VARIABLE}={name}: no such launcher; valid ones: {', '.join(LAUNCHERS)}")
    return name


def spread(pieces: Sequence[P], make: Make[P, R], *, gpu: bool = False, threads: int = 1) -> Iterator[tuple[int, R]]:
    """Every piece's number and what a worker made of it: here in order, on Ray as they get ready.

    Workers must make the same of a piece wherever and whenever they do; one that is lost is started again, and its
    piece is done again.

    Args:
        gpu: whether a worker needs a GPU of its own.
        threads: processor threads of a worker.

    Raises:
        DataError: where Ray is chosen and is not installed, or its cluster cannot be reached.
    """
    if chosen() == "ray" and pieces:
        from paco_core.runtime.launchers import ray_data

        yield from ray_data.spread(pieces, make, gpu=gpu, threads=threads)
    elif pieces:
        work = make(1)
        yield from ((number, work(piece)) for number, piece in enumerate(pieces))
