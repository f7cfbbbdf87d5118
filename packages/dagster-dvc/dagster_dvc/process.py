"""Processes: runs DVC in a process group, and tidies up after a stop."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, TextIO

from dvc_project.process_group import end_group, forget_group, start_group
from dvc_project.project import DvcProject, ResolvedStage
from dvc_project.rwlock import release_dead_locks

_FIRST_LINES, _LAST_LINES = 50, 400


@cache
def interrupt_with_parent() -> None:
    """Interrupt this process if the process that started it by ``multiprocessing`` dies, also by ``kill -9``.

    A step that Dagster started in a process of its own would otherwise survive the process of its run.
    """
    parent = multiprocessing.parent_process()

    def wait() -> None:
        assert parent is not None
        parent.join()
        os.kill(os.getpid(), signal.SIGINT)

    if parent is not None:
        threading.Thread(target=wait, name="wait for parent", daemon=True).start()


@dataclass(frozen=True)
class Completed:
    """How a process ended, with the first and last lines of what it said."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float


def began(completed: Completed) -> bool:
    """Whether DVC started the stage, in its own words."""
    return re.search(r"^Running stage '", completed.stdout, re.MULTILINE) is not None


class _Pump(threading.Thread):
    """Forwards a pipe line by line and keeps its beginning and its end."""

    def __init__(self, source: IO[bytes], sink: TextIO) -> None:
        super().__init__(daemon=True)
        self.source, self.sink = source, sink
        self.head: list[str] = []
        self.tail: deque[str] = deque(maxlen=_LAST_LINES)

    def run(self) -> None:
        for raw in self.source:
            line = raw.decode(errors="replace")
            (self.head if len(self.head) < _FIRST_LINES else self.tail).append(line)
            with suppress(ValueError):  # the sink was closed at the end of the step
                self.sink.write(line)
                self.sink.flush()


def run_group(
    command: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    grace_seconds: float,
    stopped: Callable[[Completed], None] = lambda _completed: None,
) -> Completed:
    """Run a command in a process group of its own; whatever interrupts this call ends the whole group.

    ``stopped`` is called when the group was ended, or its leader was killed, before this returns or raises.
    See :func:`dvc_project.process_group.end_group` for how a group is ended.
    """
    start = time.monotonic()
    child = start_group(
        command, cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None and child.stderr is not None
    pumps = (_Pump(child.stdout, sys.stdout), _Pump(child.stderr, sys.stderr))
    for pump in pumps:
        pump.start()

    def completed(wait: float) -> Completed:
        for pump in pumps:
            pump.join(wait)  # a server that the stage left behind may hold the pipe open
        texts = ["".join([*pump.head, *pump.tail]) for pump in pumps]
        return Completed(child.returncode, texts[0], texts[1], time.monotonic() - start)

    try:
        child.wait()
    except BaseException:  # Dagster's interrupt, Ctrl-C: nothing of the stage may live on
        end_group(child, grace_seconds)
        stopped(completed(wait=0.5))
        raise
    if child.returncode < 0:  # killed by another hand, by the kernel for memory say: its children are orphans
        end_group(child, grace_seconds)
        stopped(completed(wait=0.5))
    forget_group(child)
    return completed(wait=5)


def tidy_up(project: DvcProject, stage: ResolvedStage, completed: Completed) -> list[str]:
    """After a stop: no half-written out of a stage that had begun, no lock of a process that is gone; what was done.

    To be called where the stage ran: process ids say nothing on another machine.
    """
    removed = remove_half_written(project, stage) if began(completed) else []
    lines = [f"{stage.name} was stopped: removed the half-written {path}" for path in removed]
    released = release_dead_locks(project.root)
    return lines + [
        f"{stage.name} was stopped: released DVC's lock of the ended process {process}" for process in released
    ]


def remove_half_written(project: DvcProject, stage: ResolvedStage) -> list[str]:
    """Remove the outs that a stopped run of ``stage`` left; returns their paths.

    DVC deletes the outs before it runs a stage, so what lies there and is not what ``dvc.lock`` records
    was written by the run that was stopped. Outs with ``persist: true`` stay: a stage resumes from them.
    """
    entry = project.lock().get(stage.name)
    removed = []
    for out in stage.outs:
        path = project.root / out.path
        if out.persist or "://" in out.path or not os.path.lexists(path):
            continue
        if entry is not None and project.workspace.md5(out.path) == entry.outs.get(out.path):
            continue
        with suppress(FileNotFoundError):  # another DVC removed it first
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        removed.append(out.path)
    return removed
