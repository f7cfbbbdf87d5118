"""Launchers: work runs on this machine, under accelerate, or on a Ray cluster, as ``PACO_LAUNCHER`` selects.

``PACO_LAUNCHER`` is not in a stage's ``cmd``: DVC hashes the command, and the launcher does not change the outs.
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
#: Called once in each worker, with the number of workers; returns the function that works on one piece.
Make = Callable[[int], Callable[[P], R]]


def current_launcher() -> Name:
    """The launcher that the environment selects.

    Raises:
        ParamsError: when there is no such launcher.
    """
    name = os.environ.get(VARIABLE) or "local"
    if name not in LAUNCHERS:
        raise ParamsError(f"{VARIABLE}={name}: no such launcher; valid ones: {', '.join(LAUNCHERS)}")
    return name


def map_pieces(
    pieces: Sequence[P], make: Make[P, R], *, gpu: bool = False, threads: int = 1
) -> Iterator[tuple[int, R]]:
    """Yield the index and the result of each piece: locally in order, on Ray in the order of completion.

    The result of a piece must not depend on the worker: if a worker is lost, another one computes its piece again.

    Args:
        make: called once in each worker.
        gpu: whether each worker needs a GPU.
        threads: CPU threads per worker.

    Raises:
        DataError: when Ray is selected but is not installed, or its cluster cannot be reached.
    """
    if current_launcher() == "ray" and pieces:
        from paco_core.runtime.launchers import ray_data

        yield from ray_data.map_pieces_on_ray(pieces, make, gpu=gpu, threads=threads)
    elif pieces:
        work = make(1)
        yield from ((number, work(piece)) for number, piece in enumerate(pieces))
