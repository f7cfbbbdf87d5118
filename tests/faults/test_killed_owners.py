"""What starts other processes, killed by signal 9: they do not outlive it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import dvc_graphs as graphs
from tests.faults.verdicts import Ledger
from tests.support.waiting import free_port
from tests.unit.pipelines.test_ui import FAKE

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]
GRACE_S = 15.0
GRAPH = "stages:\n  a: {cmd: python slow.py, outs: [a.out]}\n  b: {cmd: python slow.py, outs: [b.out]}\n"
SLOW = "import pathlib, os, time\npathlib.Path(f'begun-{os.getpid()}').touch()\ntime.sleep(120)\n"


def killed_with_children(process: subprocess.Popen[bytes], begun: Callable[[], bool]) -> list[psutil.Process]:
    """Kill a process once it has begun; those of its children that live on after a while."""
    deadline = time.monotonic() + 120
    while not begun():
        assert process.poll() is None and time.monotonic() < deadline, "it did not begin"
        time.sleep(0.05)
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(family, GRACE_S)
    alive = [child for child in alive if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    names = [" ".join(child.cmdline())[:80] for child in alive]
    for child in alive:
        child.kill()
    print(names)
    return alive


def test_the_runner_of_several_stages(tmp_path: Path, ledger: Ledger) -> None:
    root = graphs.make(tmp_path / "project", GRAPH, slow__py=SLOW)
    runner = subprocess.Popen([sys.executable, "-m", "dvc_project.repro", "--jobs", "2"], cwd=root)
    with ledger.row("signal 9", "python -m dvc_project.repro") as row:
        left = killed_with_children(runner, lambda: len(list(root.glob("begun-*"))) == 2)
        row.judge("while two stages run", ("unclear", f"{len(left)} processes live on") if left else None)


def test_the_pages(tmp_path: Path, ledger: Ledger) -> None:
    """Processes in the place of Dagster and MLflow, which take a quarter of a minute to start."""
    (tmp_path / "dagster.yaml").write_text("{}\n")
    arguments = [sys.executable, "-c", FAKE, str(free_port()), str(free_port()), str(tmp_path)]
    with (tmp_path / "log").open("w") as log:
        pages = subprocess.Popen(arguments, stdout=log, stderr=log)
    with ledger.row("signal 9", "make ui") as row:
        left = killed_with_children(pages, lambda: (tmp_path / "log").read_text().count("up") == 3)
        row.judge("while both pages are served", ("unclear", f"{len(left)} processes live on") if left else None)
