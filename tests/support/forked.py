"""An act in a forked process, whole or killed by signal 9 at one of its calls.

The parent has imported what the act needs: a fault then costs what the act costs, not a second of imports. The moment
is a number of calls that the interpreter's own profiler counts in the main thread, so that a seed names the same
moment on every machine: between any two calls of Python or C, or just before one that changes a file. A test that
knows where a kill hurts names a function instead.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

LIMIT_S = 120.0
PR_SET_PDEATHSIG = 1
#: Calls that change a file, a folder or a database.
CHANGES = frozenset("""
    write writelines writev flush fsync close replace rename unlink remove rmdir mkdir truncate ftruncate link symlink
    flock open execute executemany commit sendall send
""".split())  # fmt: skip  # noqa: SIM905
Count = Literal["calls", "changes"]


@dataclass(frozen=True)
class Moment:
    """The ``number``-th call, or the ``number``-th call that changes a file."""

    count: Count
    number: int

    def __str__(self) -> str:
        return f"killed at {self.count} {self.number}"


@dataclass(frozen=True)
class At:
    """The ``number``-th call of a function or method, by its module and name: ``("pathlib", "Path.replace", 3)``."""

    module: str
    name: str
    number: int = 1

    def arm(self) -> None:
        """Have this process kill itself there."""
        owner: Any = importlib.import_module(self.module)
        *way, function = self.name.split(".")
        for part in way:
            owner = getattr(owner, part)
        original, calls = getattr(owner, function), itertools.count(1)

        def dying(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == self.number:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        setattr(owner, function, dying)


@dataclass(frozen=True)
class ProcessResult:
    """How an act ended: exit code (negative: by that signal, None: hung and was killed), its output, its calls."""

    code: int | None
    text: str
    calls: int = 0
    changes: int = 0
    seconds: float = 0.0

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    def moments(self, rng: random.Random, number: int) -> Iterator[Moment]:
        """Moments of an act that was counted: half of them anywhere, half at a change of a file."""
        for n in range(number):
            count: Count = "changes" if n % 2 and self.changes else "calls"
            yield Moment(count, rng.randint(1, max(1, getattr(self, count))))


@dataclass(frozen=True)
class Child:
    """An act under way in a process of its own."""

    pid: int
    log: Path
    began: float

    def wait(self, limit_s: float = LIMIT_S) -> ProcessResult:
        """Its end; one that takes longer is killed and counts as hung."""
        code = _wait(self.pid, self.began + limit_s)
        text = self.log.read_text(errors="replace") if self.log.is_file() else ""
        self.log.unlink(missing_ok=True)
        calls = changes = 0
        if "\0" in text:
            text, _, counted = text.rpartition("\0")
            calls, changes = map(int, counted.split())
        return ProcessResult(code, text, calls, changes, time.monotonic() - self.began)


def start(
    act: Callable[[], object],
    folder: Path,
    kill: Moment | At | None = None,
    *,
    count: bool = False,
    log: Path | None = None,
) -> Child:
    """Fork, and act in ``folder`` as its working folder.

    Args:
        kill: when the child kills itself; never when None.
        count: count calls without a kill.
        log: where what it prints goes meanwhile.
    """
    place = log or folder / ".forked.log"
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _child(act, folder, place, kill, count)
    return Child(pid, place, began)


def run(
    act: Callable[[], object],
    folder: Path,
    kill: Moment | At | None = None,
    *,
    count: bool = False,
    limit_s: float = LIMIT_S,
    log: Path | None = None,
) -> ProcessResult:
    """:func:`start`, and wait."""
    return start(act, folder, kill, count=count, log=log).wait(limit_s)


def _wait(pid: int, deadline: float) -> int | None:
    while True:
        finished_pid, status = os.waitpid(pid, os.WNOHANG)
        if finished_pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(0.005)


def _child(act: Callable[[], object], folder: Path, log: Path, kill: Moment | At | None, count: bool) -> None:
    code = 70
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a suite that is stopped leaves nothing at work
    if "torch" in sys.modules:  # lets go of the parent's threads, before several threads of the child do so at once
        sys.modules["torch"].set_num_threads(1)
    try:
        output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        os.chdir(folder)
        if isinstance(kill, At):
            kill.arm()
            kill = None
        counted = _watch(kill) if kill or count else None
        try:
            act()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.setprofile(None)
        if counted is not None:
            print("\0", counted["calls"], counted["changes"], flush=True)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _watch(kill: Moment | None) -> dict[Count, int]:
    """Count calls from now on; at the moment, end by signal 9: no handler runs, nothing is flushed."""
    counted: dict[Count, int] = {"calls": 0, "changes": 0}
    watched, last = (kill.count, kill.number) if kill else ("calls", -1)

    def look(_frame: Any, event: str, arg: Any) -> None:
        if event == "call" or event == "c_call":
            counted["calls"] += 1
            if event == "c_call" and arg.__name__ in CHANGES:
                counted["changes"] += 1
            if counted[watched] == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(look)
    return counted
