"""More than one process: this one becomes rank 0 and starts the others, which end with it.

accelerate reads rank and world size from the environment, as it does under its own launcher; whoever
starts the ranks otherwise (`accelerate launch`, a scheduler) is left alone.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch.distributed
from accelerate.state import AcceleratorState

from paco_core.io.files import DataError
from paco_core.io.parent_process import die_with_parent
from paco_core.runtime.launchers import rendezvous

JOIN_S = 30.0  # that ranks are given to end by themselves
NOTICE_S = 20.0  # that rank 0 is given to notice that another one failed


class RankError(DataError):
    """Another rank ended before its work was done."""


def _environment(rank: int, count: int, meeting: Path) -> dict[str, str]:
    return {
        rendezvous.FILE: str(meeting),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
    }


def _become(environment: dict[str, str], work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    starter = multiprocessing.parent_process()
    die_with_parent(None if starter is None else starter.pid, signal.SIGKILL)  # it has nothing of its own to tidy up
    os.environ.update(environment)
    work(*args)
    _forget()  # the group's threads may not be ended by the interpreter: that aborts the process


@contextmanager
def ranks(count: int, work: Callable[..., Any], *args: Any) -> Iterator[None]:
    """Run the block as rank 0 of ``count`` while the other ranks call ``work(*args)``.

    Nothing happens where ``count`` is 1, or something else has set the ranks already.

    Raises:
        RankError: when another rank failed; this one may notice by a lost connection, or only at the end. Where it
            does neither, because it waits for the other, this process ends with status 1 after :data:`NOTICE_S`.
    """
    if count == 1 or "RANK" in os.environ:
        yield
        return
    context = multiprocessing.get_context("spawn")
    folder = tempfile.TemporaryDirectory(prefix="paco-ranks-")  # others may not look into it
    meeting = Path(folder.name) / "store"
    others = [
        context.Process(target=_become, args=(_environment(rank, count, meeting), work, args), daemon=True)
        for rank in range(1, count)
    ]
    own = _environment(0, count, meeting)
    before = {name: os.environ.get(name) for name in (*own, "MASTER_PORT", *rendezvous.INTERFACES)}  # accelerate's, too
    for process in others:
        process.start()
    os.environ.update(own)
    try:
        _forget()  # what an earlier training by this process alone has left
        with _watched(others):
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
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        _forget()
        folder.cleanup()


@contextmanager
def _watched(others: Sequence[BaseProcess]) -> Iterator[None]:
    """End this process when another rank failed and the block, which may wait for it within torch, goes on."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            if failed := _failed(others):
                if not over.wait(NOTICE_S):
                    text = f"rank {failed[0]} of {len(others) + 1} failed; rank 0, which waited for it, ends"
                    print(text, file=sys.stderr, flush=True)
                    os._exit(1)
                return

    watcher = threading.Thread(target=watch, name="ranks", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _failed(others: Sequence[BaseProcess]) -> list[int]:
    """The ranks that ended in failure."""
    return [rank for rank, process in enumerate(others, start=1) if process.exitcode]


def _forget() -> None:
    """Leave the process group, so that this process can start another, or go on alone."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)
