"""Locks and leases under many processes that come, go and are killed: one holder at a time, and no lease is lost."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from dvc_project.file_locks import hold, is_held
from paco_core.serving.servers import supervisor
from tests.faults.verdicts import Ledger
from tests.support import forked

WORKERS, SECONDS = 6, 3.0


def hammer(folder: Path, seed: int, seconds: float) -> None:
    """Take a lock again and again; write down when another one was inside at the same time."""
    rng, end = random.Random(seed), time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            stream = hold(folder / "lock")
        except BlockingIOError:
            continue
        with stream:
            inside = folder / "inside"
            try:
                os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                if _lives(inside):
                    (folder / f"two-{seed}").touch()
                inside.unlink(missing_ok=True)
                continue
            inside.write_text(str(os.getpid()))
            time.sleep(rng.random() / 2000)
            inside.unlink(missing_ok=True)


def _lives(inside: Path) -> bool:
    """Whether who wrote the file lives; one that was killed left it behind, and may not have been waited for yet."""
    try:
        writer = int(inside.read_text() or 0)
        return writer not in (0, os.getpid()) and psutil.Process(writer).status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, FileNotFoundError):
        return False


def test_one_holder_at_a_time(tmp_path: Path, ledger: Ledger, tries: Callable[[int, int], int]) -> None:
    rng = random.Random("lock")
    seconds = tries(4, 1)
    children = [
        forked.start(lambda n=n: hammer(tmp_path, n, seconds), tmp_path, log=tmp_path / f".{n}") for n in range(WORKERS)
    ]
    with ledger.row("signal 9", "holder of a lock") as row:
        for victim in children[: WORKERS // 2]:
            time.sleep(rng.random() / 4)
            os.kill(victim.pid, signal.SIGKILL)
        ended = [child.wait() for child in children]
        for number, end in enumerate(ended):
            row.judge(
                f"worker {number}",
                ("wrong", "two held the lock at once") if (tmp_path / f"two-{number}").exists() else None,
                None if end.code in (0, -signal.SIGKILL) else ("unclear", end.text[-300:]),
            )
        row.judge("and afterwards", ("wrong", "held by nobody that lives") if is_held(tmp_path / "lock") else None)


def lease(home: Path, seed: int, seconds: float) -> None:
    """Take leases as users of a server do; each must be there for as long as it is held."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        number += 1
        path = home / "leases" / f"{seed}-{number}"
        try:
            stream = hold(path)
        except BlockingIOError:
            (home / f"refused-{seed}").touch()
            continue
        with stream:
            for _ in range(3):
                if not path.exists():
                    (home / f"gone-{seed}").touch()
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
    users = [
        forked.start(lambda n=n: lease(tmp_path, n, seconds), tmp_path, log=tmp_path / f".{n}") for n in range(WORKERS)
    ]
    watchers = [forked.start(lambda: watch(tmp_path, seconds), tmp_path, log=tmp_path / f".watch{n}") for n in range(2)]
    time.sleep(seconds / 2)
    os.kill(users[0].pid, signal.SIGKILL)
    ended = [child.wait() for child in [*users, *watchers]]
    with ledger.row("race for a lease", "supervisor of a server") as row:
        for number in range(WORKERS):
            row.judge(
                f"user {number}",
                ("lost", "a lease was removed while it was held") if (tmp_path / f"gone-{number}").exists() else None,
                ("wrong", "a lease of one's own was refused") if (tmp_path / f"refused-{number}").exists() else None,
                None if ended[number].code in (0, -signal.SIGKILL) else ("unclear", ended[number].text[-300:]),
            )
        for number, end in enumerate(ended[WORKERS:]):
            row.judge(f"supervisor {number}", None if end.code == 0 else ("unclear", end.text[-300:]))
        left = supervisor.leases(tmp_path)
        row.judge("the killed one's", ("wrong", f"{len(left)} leases of the dead stay") if left else None)
