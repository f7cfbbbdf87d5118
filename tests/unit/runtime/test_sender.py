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
from paco_core.runtime.tracking import count_journals, open_run, send_left_over, sender, tracking_uri
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
    assert count_journals(project) == 0


@pytest.mark.slow
def test_a_killed_stage_ends_killed_and_its_sender_goes_with_the_project(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACO_SENDER_IDLE_S", "600")
    code = f"""
        from pathlib import Path
        from paco_core.runtime.tracking import open_run
        with open_run(Path({str(project)!r}), "paco/x", "x", {{}}) as tracker:
            for step in range(100):
                tracker.metrics({{"loss": float(step)}}, step)
            print("logged", flush=True)
            input()
    """
    stage = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert stage.stdout is not None and stage.stdout.readline() == "logged\n"
    (journal,) = journals(project)
    until(lambda: journal.delivered().run_id)
    run_id = journal.delivered().run_id
    stage.send_signal(signal.SIGKILL)
    stage.communicate(timeout=60)  # returns at once only if the sender does not hold the pipes
    assert is_held(project / LOG)
    pid = int((project / LOG).read_text().split()[2])
    until(lambda: count_journals(project) == 0)
    run = runs(project)["x"]
    assert (run.info.run_id, run.info.status) == (run_id, "KILLED")
    assert len(history(project, run_id)) == 100
    shutil.rmtree(project / ".paco", ignore_errors=True)  # which the sender is still clearing up
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def fails(*_args: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])


def has_no_space(*_args: object) -> subprocess.Popen[bytes]:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(("start", "reason"), [(fails, "ended with 3, see"), (has_no_space, "No space left")])
def test_a_sender_that_cannot_run_is_reported_and_not_waited_for(
    project: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[..., Any], reason: str
) -> None:
    monkeypatch.setattr(sender, "start", start)
    messages: list[str] = []
    with open_run(project, "paco/x", "x", {}, print_line=messages.append) as tracker:
        assert tracker.run_id is None
    assert len(messages) == 1 and reason in messages[0] and "2 events" in messages[0]
    assert send_left_over(project).waiting == 0 and runs(project)["x"].info.status == "FINISHED"


def test_a_damaged_journal_does_not_block_the_others(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    header = {"uri": tracking_uri(project), "kind": "run"}
    damaged = RunJournal.begin(project, header), RunJournal.begin(project, header)
    folder = RunJournal.begin(project, header)
    folder.events.unlink()
    folder.events.mkdir()
    folder.close()
    for journal, first in zip(damaged, (json.dumps(header), "\0\0\0"), strict=True):
        journal.events.write_text(f"{first}\n\0\0\0\n")
        journal.close()
    with open_run(project, "paco/x", "x", {}) as tracker:
        assert tracker.run_id
    assert runs(project)["x"].info.status == "FINISHED"
    assert all(journal.home.is_dir() for journal in damaged)
    assert 2 <= capfd.readouterr().err.count("not an event") <= 4, "not in every round"
    problems = " ".join(send_left_over(project).problems)
    assert all(f"{journal.events}, byte " in problems for journal in damaged)
    assert f"{folder.events}: a folder" in problems


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
