"""A function run as the ranks of a training: processes that meet at a free port of this machine."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from typing import Any, Literal

from tests.support.waiting import free_port

DEADLINE_S = 240


#: What `accelerate launch --config_file launch/fsdp2.yaml` sets.
FSDP2 = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "true"}


def join_ranks(rank: int, world: int, port: int) -> None:
    """Set what a launcher sets, and forget what a fork inherited from an earlier training."""
    env = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in env.items()})
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)


def _rank(rank: int, world: int, port: int, work: Callable[..., None], args: tuple[Any, ...]) -> None:
    join_ranks(rank, world, port)
    work(*args)


def together(
    work: Callable[..., None], *args: Any, world: int = 2, start_method: Literal["spawn", "fork"] = "spawn"
) -> None:
    """Call ``work(*args)`` in every rank; all of them must end well."""
    context, port = multiprocessing.get_context(start_method), free_port()
    ranks = [context.Process(target=_rank, args=(n, world, port, work, args), daemon=True) for n in range(world)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(DEADLINE_S)
    stuck = [process for process in ranks if process.is_alive()]
    for process in stuck:
        process.kill()
        process.join()
    assert not stuck and [process.exitcode for process in ranks] == [0] * world
