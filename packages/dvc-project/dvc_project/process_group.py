"""Process groups: a stop reaches everything that a command started, also when the process that started it is killed.

``kill -9`` leaves a process no time to end its groups. Another process does so: this file, run by its path with nothing
but the standard library. Its standard input is a pipe on which the starter writes ``+ID`` for a group that it started
and ``-ID`` for one that has ended. The death of the starter closes the pipe. The argument is the grace in seconds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

DVC = (sys.executable, "-m", "dvc")  # of this interpreter
_ORPHANS_GRACE_SECONDS = 10.0  # for the groups of a process that was killed
#: Signals, and the share of the grace that each gets. SIGINT comes first because DVC and most stages tidy up after a
#: Ctrl-C, and DVC does not after SIGTERM.
_ENDS = ((signal.SIGINT, 0.6), (signal.SIGTERM, 0.4))


def search_path() -> str:
    """``PATH`` with this interpreter first: ``python`` in a ``cmd`` then means the one that runs this."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def interrupt_on(*numbers: signal.Signals) -> None:
    """Raise KeyboardInterrupt on the first of these signals; later ones must not cut the stop short and are ignored."""
    interrupted = False

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, interrupt)


def start_group(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own: Ctrl-C reaches this process only, which ends its groups in order.

    The group ends also when this process is killed. :func:`end_group` ends it earlier. If it ended by itself, call
    :func:`forget_group`. ``options`` are those of :class:`subprocess.Popen`.
    """
    _watchdog()  # before the fork, which needs its pipe

    def announce() -> None:
        # In the child, before the command replaces it: this process may be killed between the fork and its next line.
        _tell_watchdog(f"+{os.getpid()}\n")

    return subprocess.Popen(command, start_new_session=True, preexec_fn=announce, **options)  # noqa: PLW1509 (one write)


def forget_group(child: subprocess.Popen[bytes]) -> None:
    """A group has ended, or its remaining processes may live on."""
    _tell_watchdog(f"-{child.pid}\n")


def end_group(child: subprocess.Popen[bytes], grace_seconds: float) -> None:
    """End a process group: SIGINT, SIGTERM, and SIGKILL for what is left after the grace.

    SIGINT does not reach a process that was started with it ignored, such as a background job of a shell.
    """
    try:
        _end_groups({child.pid}, grace_seconds, child)
        child.wait()
    finally:
        forget_group(child)


def _end_groups(groups: Iterable[int], grace_seconds: float, child: subprocess.Popen[bytes] | None = None) -> None:
    left = set(groups)
    for number, share in _ENDS:
        left = {group for group in left if _signal_group(group, number)}
        deadline = time.monotonic() + share * grace_seconds
        while left and time.monotonic() < deadline:
            time.sleep(0.05)
            if child is not None:
                child.poll()  # a zombie would keep its group alive
            left = {group for group in left if _signal_group(group, 0)}
    for group in left:
        _signal_group(group, signal.SIGKILL)


def _signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; False if there is none."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


@cache
def _watchdog() -> subprocess.Popen[bytes]:
    """The process that ends the groups of this one when it is killed; there is one as soon as there is a group."""
    command = [sys.executable, "-I", "-S", __file__, str(_ORPHANS_GRACE_SECONDS)]
    return subprocess.Popen(
        command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )


def _tell_watchdog(line: str) -> None:
    pipe = _watchdog().stdin
    assert pipe is not None
    with suppress(OSError):  # someone killed the watchdog: the groups would outlive this process, nothing else is lost
        pipe.write(line.encode())


def main() -> None:
    """Watch until the starter has gone, then end its groups."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    _end_groups(groups, float(sys.argv[1]))


if __name__ == "__main__":
    main()
