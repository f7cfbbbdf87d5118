"""Leases under many processes that come, go and are killed: none is lost while it is held, none of the dead stays."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from dvc_project.file_locks import hold, is_held
from paco_core.serving.servers import supervisor
from tests.faults.verdicts import Ledger
from tests.support import forked

WORKERS = 6


def lease(home: Path, user: int, seconds: float) -> None:
    """Take leases as users of a server do: none of one's own is refused, each is there for as long as it is held."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        number += 1
        path = home / "leases" / f"{user}-{number}"
        with hold(path):
            for _ in range(3):
                assert path.exists(), "a lease was removed while it was held"
                time.sleep(0.0005)
        path.unlink(missing_ok=True)


def watch(home: Path, seconds: float) -> None:
    """What a supervisor does: look who holds a lease, and remove those of the dead."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        supervisor.leases(home)
        for path in (home / "leases").glob("*"):
            is_held(path)


def test_a_lease_is_there_while_it_is_held(tmp_path: Path, ledger: Ledger, tries: Callable[[int, int], int]) -> None:
    (tmp_path / "leases").mkdir()
    seconds = tries(6, 2)
    # the first one is killed: it must not end before
    users = [lambda n=n: lease(tmp_path, n, seconds if n else 60 * seconds) for n in range(WORKERS)]
    acts = [*users, *[lambda: watch(tmp_path, seconds)] * 2]
    children = [forked.start(act, tmp_path, log=tmp_path / f".{n}") for n, act in enumerate(acts)]
    time.sleep(seconds / 2)
    os.kill(children[0].pid, signal.SIGKILL)
    with ledger.row("race for a lease", "supervisor of a server") as row:
        for number, child in enumerate(children):
            end = child.wait()
            sound = end.killed if number == 0 else end.code == 0
            row.judge(f"process {number}", None if sound else ("lost", end.text[-300:]))
        left = supervisor.leases(tmp_path)
        row.judge("the killed one's", ("wrong", f"{len(left)} leases of the dead stay") if left else None)
