"""More than one process: this one becomes rank 0 and starts the others, which end with it.

accelerate reads rank and world size from the environment, as it does under its own launcher; whoever
starts the ranks otherwise (`accelerate launch`, a scheduler) is left alone.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

from paco_core.files import DataError

JOIN_S = 30.0  # that ranks are given to end by themselves


class RankError(RuntimeError):
    """Another rank ended before its work was done."""


def _environment(rank: int, count: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _become(environment: dict[str, str], work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.environ.update(environment)
    work(*args)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def refuse_sharding() -> None:
    """Look at what `accelerate launch` was configured for.

    Raises:
        DataError: for FSDP or DeepSpeed: checkpoints and evaluation read a whole adapter.
    """
    for variable, name in (("ACCELERATE_USE_FSDP", "FSDP"), ("ACCELERATE_USE_DEEPSPEED", "DeepSpeed")):
        if os.environ.get(variable) == "true":
            raise DataError(f"the reward is trained data-parallel, not through {name}; use launch/ddp.yaml")


@contextmanager
def ranks(count: int, work: Callable[..., Any], *args: Any) -> Iterator[None]:
    """Run the block as rank 0 of ``count`` while the other ranks call ``work(*args)``.

    Nothing happens where ``count`` is 1, or something else has set the ranks already.

    Raises:
        RankError: when another rank failed; this one may notice by a lost connection, or only at the end.
    """
    if count == 1 or "RANK" in os.environ:
        yield
        return
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    port = _free_port()
    others = [
        context.Process(target=_become, args=(_environment(rank, count, port), work, args), daemon=True)
        for rank in range(1, count)
    ]
    own = _environment(0, count, port)
    before = {name: os.environ.get(name) for name in own}
    for process in others:
        process.start()
    os.environ.update(own)
    try:
        yield
        for process in others:
            process.join(JOIN_S)
        if failed := _failed(others):
            raise RankError(f"rank {failed[0]} of {count} failed; its own message stands above")
    except RankError:
        raise
    except Exception as error:
        for process in others:
            process.join(1.0)
        if failed := _failed(others):
            raise RankError(f"rank {failed[0]} of {count} failed; its own message stands above ({error})") from error
        raise
    finally:
        for process in others:
            process.terminate()
            process.join()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        _forget()


def _failed(others: Sequence[BaseProcess]) -> list[int]:
    """The ranks that ended in failure."""
    return [rank for rank, process in enumerate(others, start=1) if process.exitcode]


def _forget() -> None:
    """Leave the process group, so that this process can start another, or go on alone."""
    import torch.distributed
    from accelerate.state import AcceleratorState

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)
