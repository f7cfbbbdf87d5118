"""Keeps one server: runs it in a process group of its own and ends it when nobody has leased it for a while.

A lease is a file below ``home/leases`` that its holder has locked. The kernel drops the lock when the
holder dies, however it dies, so that a killed trainer never leaves a server behind. A file ``home/stay``
keeps a server that people started. The supervisor's own death ends the server too (parent-death signal).

It is started by path and must cost no import time: it imports small files of the standard library's kind only.
Arguments: home, lock file of the registry, seconds to linger, descriptor to pass on or "-", then the server's command.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from dvc_project.file_locks import locked, remove_unless_held
from paco_core.runtime.parent_process import die_with_parent

WATCH_S = 0.25
GRACE_S = 5.0


class Stopped(Exception):
    """SIGTERM or SIGINT has come."""


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise Stopped


def leases(home: Path) -> list[Path]:
    """Leases whose holders live; those of the dead are removed."""
    return [path for path in (home / "leases").glob("*") if not remove_unless_held(path)]


def is_wanted(home: Path) -> bool:
    return (home / "stay").exists() or bool(leases(home))


def _retire(home: Path, lock: Path) -> bool:
    """Take the server out of the registry unless somebody wants it after all."""
    with locked(lock):
        if is_wanted(home):
            return False
        (home / "server.json").unlink(missing_ok=True)
        return True


def _watch(server: subprocess.Popen[bytes], home: Path, lock: Path, linger_s: float) -> None:
    """Return when the server has ended, or nobody has wanted it for ``linger_s`` seconds."""
    last_wanted = time.monotonic()
    while server.poll() is None:
        if is_wanted(home):
            last_wanted = time.monotonic()
        elif time.monotonic() - last_wanted >= linger_s and _retire(home, lock):
            return
        time.sleep(WATCH_S)


def _end(server: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the server's group, then SIGKILL to what is left of it."""
    for number, patience in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        try:
            os.killpg(server.pid, number)
        except ProcessLookupError:
            return
        try:
            server.wait(patience)
        except subprocess.TimeoutExpired:
            continue


def main(argv: list[str]) -> int:
    home, lock, linger_s, descriptor, command = Path(argv[0]), Path(argv[1]), float(argv[2]), argv[3], argv[4:]
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    supervisor = os.getpid()
    server = subprocess.Popen(
        command,
        pass_fds=() if descriptor == "-" else (int(descriptor),),
        process_group=0,
        preexec_fn=lambda: die_with_parent(supervisor),  # noqa: PLW1509  (one thread only here)
    )
    if descriptor != "-":
        os.close(int(descriptor))
    try:
        _watch(server, home, lock, linger_s)
    except Stopped:
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ended = server.poll()
        if ended is not None:
            print(f"the server ended with exit status {ended}", flush=True)
        _end(server)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
