"""One process sends for all stages: a stage starts it, it may die at any time, and it exits by itself."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from dvc_project.file_locks import is_held
from paco_core.runtime.tracking import open_run, send_left_over, sender, tracking_uri, unsent
from paco_core.runtime.tracking.journal import RunJournal, journals
from paco_core.runtime.tracking.sender import LOG
from paco_core.runtime.tracking.sender import start as start_process
from tests.support.tracked import history, runs
from tests.support.waiting import until

Senders = list[subprocess.Popen[bytes]]


@pytest.fixture
def senders(sender_in_a_thread: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Senders]:
    """The real processes that this test's stages started; they end with the test."""
    processes: Senders = []
    monkeypatch.setenv("PACO_SENDER_IDLE_S", "600")

    def start(root: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        processes.append(start_process(root, environment))
        return processes[-1]

    monkeypatch.setattr(sender, "start", start)
    yield processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_killed_sender_is_replaced_and_nothing_is_doubled(project: Path, senders: Senders) -> None:
    with open_run(project, "paco/x", "x", {}) as tracker:
        (journal,) = journals(project)
        first = journal.size()
        for step in range(3000):
            tracker.metrics({"loss": float(step)}, step)
        until(lambda: journal.delivered().offset > first)
        senders[0].kill()  # in the middle of its work
    run = runs(project)["x"]
    assert len(senders) == 2 and run.info.status == "FINISHED" and tracker.run_id == run.info.run_id
    assert history(project, run.info.run_id) == [(step, float(step)) for step in range(3000)]
    assert unsent(project) == 0


@pytest.mark.slow
def test_a_killed_stage_ends_killed_and_its_sender_goes_with_the_project(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACO_SENDER_IDLE_S", "600")
    code = f"""
        from pathlib import Path
        from paco_core.runtime import tracking
        tracking.PATIENCE_S = 100.0
        with tracking.open_run(Path({str(project)!r}), "paco/x", "x", {{}}) as tracker:
            for step in range(100):
                tracker.metrics({{"loss": float(step)}}, step)
            print(tracker.run_id, flush=True)
            input()
    """
    stage = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert stage.stdout is not None
    run_id = stage.stdout.readline().strip()
    stage.send_signal(signal.SIGKILL)
    stage.communicate(timeout=60)  # returns at once only if the sender does not hold the pipes
    assert is_held(project / LOG)
    pid = int((project / LOG).read_text().split()[2])
    until(lambda: unsent(project) == 0)
    run = runs(project)["x"]
    assert (run.info.run_id, run.info.status) == (run_id, "KILLED")
    assert len(history(project, run_id)) == 100
    shutil.rmtree(project / ".paco", ignore_errors=True)  # which the sender is still clearing up
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


@pytest.mark.slow
def test_a_sender_tries_a_dead_server_once_for_what_was_left_and_exits(
    project: Path, senders: Senders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # nobody listens on the discard port
    monkeypatch.setenv("PACO_SENDER_IDLE_S", "0.2")
    said: list[str] = []
    with open_run(project, "paco/x", "x", {}, say=said.append) as tracker:
        assert tracker.run_id is None, "the store has refused, nobody waits for more"
    (line,) = said
    assert "2 events of this run wait in" in line and "http://127.0.0.1:9 (ConnectionRefusedError: " in line
    assert senders[0].wait(60) == 0 and unsent(project) == 1 and not is_held(project / LOG)
    assert send_left_over(project).waiting == 2


def fails(*_args: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])


def has_no_space(*_args: object) -> subprocess.Popen[bytes]:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(("start", "reason"), [(fails, "ended with 3, see"), (has_no_space, "No space left")])
def test_a_sender_that_cannot_run_is_reported_and_not_waited_for(
    project: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[..., Any], reason: str
) -> None:
    monkeypatch.setattr(sender, "start", start)
    said: list[str] = []
    with open_run(project, "paco/x", "x", {}, say=said.append) as tracker:
        assert tracker.run_id is None
    (line,) = said
    assert reason in line and "2 events of this run wait in" in line
    assert send_left_over(project).waiting == 0 and runs(project)["x"].info.status == "FINISHED"


def test_a_damaged_journal_does_not_block_the_others(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    header = {"uri": tracking_uri(project), "kind": "run"}
    damaged = RunJournal.begin(project, header), RunJournal.begin(project, header)
    for journal, first in zip(damaged, (json.dumps(header), "\0\0\0"), strict=True):
        journal.events.write_text(f"{first}\n\0\0\0\n")
        journal.close()
    with open_run(project, "paco/x", "x", {}) as tracker:
        assert tracker.run_id
    assert runs(project)["x"].info.status == "FINISHED"
    assert all(journal.home.is_dir() for journal in damaged)
    count = capfd.readouterr().err.count("not an event")
    assert 2 <= count <= 4, "of each at the sender's start and the stage's, not in every round"
    problems = sorted(send_left_over(project).problems)
    assert len(problems) == 2
    for journal, problem in zip(sorted(damaged, key=lambda journal: journal.home), problems, strict=True):
        assert f"{journal.events}, byte " in problem and "does not block the others" in problem


@pytest.mark.slow
def test_one_sender_serves_all_stages_and_another_one_a_stage_with_other_credentials(
    project: Path, senders: Senders, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_run(project, "paco/x", "first", {}) as first, open_run(project, "paco/x", "second", {}) as second:
        assert first.run_id and second.run_id
    with open_run(project, "paco/x", "third", {}):
        pass
    until(lambda: sum(sender.poll() is None for sender in senders) == 1)  # two stages that start at once start two
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "hunter2")
    with open_run(project, "paco/x", "fourth", {}) as fourth:
        assert fourth.run_id and sum(sender.poll() is None for sender in senders) == 2
        events = journals(project)[0].events.read_text()
    assert senders[-1].wait(60) == 0 and sum(sender.poll() is None for sender in senders) == 1
    assert [run.info.status for run in runs(project).values()] == ["FINISHED"] * 4
    assert "hunter2" not in events + (project / LOG).read_text()
