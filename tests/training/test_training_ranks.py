"""Processes that a training starts itself: one that fails is named, and never waited for."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paco_core.training.processes import Processes
from paco_core.training.ranks import RankError, ranks


def fail() -> None:
    raise ValueError("broken on purpose")


def test_a_rank_that_fails_is_named() -> None:
    with pytest.raises(RankError, match=r"rank 1 of 2 failed.*closed by peer"), ranks(2, fail):
        deadline = time.monotonic() + 240
        while multiprocessing.active_children():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        raise RuntimeError("connection closed by peer")  # what a collective would say


def test_a_rank_that_fails_unnoticed_is_named_at_the_end() -> None:
    with pytest.raises(RankError, match="rank 1 of 2 failed"), ranks(2, fail):
        multiprocessing.active_children()[0].join(240)


def meet() -> None:
    processes = Processes()
    assert processes.accelerator().num_processes == 2
    assert processes.gather([processes.rank]) == [0, 1]


def test_a_process_that_has_trained_alone_joins_the_others() -> None:
    assert Processes().accelerator().num_processes == 1
    with ranks(2, meet):
        meet()


WAITING = """
import time
from paco_core.training import ranks

ranks.NOTICE_S = 1.0

def fail():
    raise ValueError("broken on purpose")

if __name__ == "__main__":
    with ranks.ranks(2, fail):
        time.sleep(600)  # as in a rendezvous, to which the other one never comes
"""


def test_a_rank_that_never_comes_is_not_waited_for(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "training.py").write_text(WAITING)
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    command = [sys.executable, "training.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1 and "rank 1 of 2 failed; rank 0, which waited for it, ends" in done.stderr
