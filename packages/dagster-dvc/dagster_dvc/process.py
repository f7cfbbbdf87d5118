"""A child process in a group of its own, so that a stop reaches everything it started."""

from __future__ import annotations

import multiprocessing
import os
import re
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
from typing import IO, Any, TextIO

from dagster_dvc import watchdog

_FIRST_LINES, _LAST_LINES = 50, 400
_ORPHANS_GRACE_SECONDS = 10.0  # for the groups of a process that was killed
DVC = (sys.executable, "-m", "dvc")  # of this interpreter


def search_path() -> str:
    """``PATH`` with this interpreter first: ``python`` in a ``cmd`` then means the one that runs this."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def interrupt_on(*numbers: signal.Signals) -> None:
    """Have the first of these signals raise KeyboardInterrupt, so that what runs is ended in order.

    Those that follow are ignored: they must not cut that short.
    """
    interrupted = False

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, interrupt)


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


def began(done: Completed) -> bool:
    """Whether DVC started the stage, in its own words."""
    return re.search(r"^Running stage '", done.stdout, re.MULTILINE) is not None


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
    stopped: Callable[[Completed], None] = lambda _done: None,
) -> Completed:
    """Run a command in a process group of its own; whatever interrupts this call ends the whole group.

    ``stopped`` is called when the group was ended, or its leader was killed, before this returns or raises.
    See :func:`end_group` for how a group is ended.
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


@cache
def _watchdog() -> subprocess.Popen[bytes]:
    """What ends the groups of this process when it is killed; there is one as soon as there is a group."""
    command = [sys.executable, "-I", "-S", str(Path(watchdog.__file__)), str(_ORPHANS_GRACE_SECONDS)]
    return subprocess.Popen(
        command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )


def _write_to_watchdog(line: str) -> None:
    pipe = _watchdog().stdin
    assert pipe is not None
    with suppress(OSError):  # somebody killed it: our groups would outlive us, and nothing else is lost
        pipe.write(line.encode())


def start_group(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own: Ctrl-C reaches this process only, which ends its groups in order.

    They end also when this process is killed (``kill -9``). :func:`end_group` ends one; when it has ended by itself,
    say so with :func:`forget_group`. ``options`` are those of :class:`subprocess.Popen`.
    """
    _watchdog()  # there before the fork, which is to have its pipe

    def announce() -> None:
        # In the child, before the command takes its place: between a start and a word of ours we might be killed.
        _write_to_watchdog(f"+{os.getpid()}\n")

    return subprocess.Popen(command, start_new_session=True, preexec_fn=announce, **options)  # noqa: PLW1509 (one write)


def forget_group(child: subprocess.Popen[bytes]) -> None:
    """A group has ended, or what is left of it may live on."""
    _write_to_watchdog(f"-{child.pid}\n")


def end_group(child: subprocess.Popen[bytes], grace_seconds: float) -> None:
    """End a process group: SIGINT, SIGTERM, and SIGKILL for what is left after the grace.

    SIGINT comes first because DVC and most stages tidy up after a Ctrl-C, and DVC does not after SIGTERM.
    It does not reach a process that was started with it ignored, such as a background job of a shell.
    """
    try:
        _end(child, grace_seconds)
    finally:
        forget_group(child)


def _end(child: subprocess.Popen[bytes], grace_seconds: float) -> None:
    for number, share in watchdog.ENDS:
        watchdog.signal_group(child.pid, number)
        deadline = time.monotonic() + share * grace_seconds
        while time.monotonic() < deadline:
            child.poll()
            if not watchdog.signal_group(child.pid, 0):
                return
            time.sleep(0.05)
    watchdog.signal_group(child.pid, signal.SIGKILL)
    child.wait()
