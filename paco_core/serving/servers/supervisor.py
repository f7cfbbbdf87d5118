"""Supervisor: runs one server in a separate process group, and stops it when it has no lease for a while.

A lease is a file in ``server_dir/leases`` that its holder has locked. The kernel releases the lock when the holder
dies, so a killed trainer never leaves a server running. A file ``server_dir/stay`` keeps a server that a user started.
If the supervisor dies, the server ends too (parent-death signal).

It is started by path and imports only small modules, so it starts fast. Arguments: server_dir, lock file of the
registry, idle timeout in seconds, file descriptor to inherit or "-", and the server's command.
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
    """SIGTERM or SIGINT was received."""


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise Stopped


def leases(server_dir: Path) -> list[Path]:
    """Leases whose holders live. Leases of dead processes are removed."""
    return [path for path in (server_dir / "leases").glob("*") if not remove_unless_held(path)]


def is_wanted(server_dir: Path) -> bool:
    return (server_dir / "stay").exists() or bool(leases(server_dir))


def _unregister(server_dir: Path, lock: Path) -> bool:
    """Remove the server from the registry, unless it has a lease by now; whether it was removed."""
    with locked(lock):
        if is_wanted(server_dir):
            return False
        (server_dir / "server.json").unlink(missing_ok=True)
        return True


def _watch(server: subprocess.Popen[bytes], server_dir: Path, lock: Path, idle_timeout_s: float) -> None:
    """Return when the server has ended, or had no lease for ``idle_timeout_s`` seconds."""
    last_wanted = time.monotonic()
    while server.poll() is None:
        if is_wanted(server_dir):
            last_wanted = time.monotonic()
        elif time.monotonic() - last_wanted >= idle_timeout_s and _unregister(server_dir, lock):
            return
        time.sleep(WATCH_S)


def _end(server: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to the server's process group, then SIGKILL to the processes that remain."""
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
    server_dir, lock, idle_timeout_s, descriptor, command = (
        Path(argv[0]),
        Path(argv[1]),
        float(argv[2]),
        argv[3],
        argv[4:],
    )
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
        _watch(server, server_dir, lock, idle_timeout_s)
    except Stopped:
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        exit_status = server.poll()
        if exit_status is not None:
            print(f"the server ended with exit status {exit_status}", flush=True)
        _end(server)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
