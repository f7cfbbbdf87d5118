"""One process sends for all stages: it comes when it is needed, may die at any time, and goes by itself."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import mlflow
import psutil
import pytest

from paco_core.io.file_locks import try_hold
from paco_core.runtime import tracking
from paco_core.runtime.tracking import open_run, outbox, send_left_over, unsent
from paco_core.runtime.tracking.journal import FOLDER, RunJournal
from paco_core.runtime.tracking.outbox import SenderAddress
from paco_core.runtime.tracking.outbox import start as start_process
from tests.support.waiting import until

Senders = list[subprocess.Popen[bytes]]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    monkeypatch.setattr(tracking, "PATIENCE_S", 200.0)  # none of it is spent but on a busy machine


@pytest.fixture
def senders(sender_in_a_thread: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Senders]:
    """The real processes that this test's stages started; they end with the test."""
    started: Senders = []
    monkeypatch.setenv("PACO_SENDER_IDLE_S", "600")

    def start(address: SenderAddress, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        started.append(start_process(address, environment))
        return started[-1]

    monkeypatch.setattr(outbox, "start", start)
    yield started
    for sender in started:
        sender.kill()
        sender.wait()


def runs_on(pid: int) -> bool:
    """Whether a process lives; one that nobody waited for does not."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def runs(project: Path) -> dict[str, Any]:
    client = mlflow.MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    return {
        run.info.run_name: run for run in client.search_runs([e.experiment_id for e in client.search_experiments()])
    }


def losses(project: Path, run_id: str) -> list[tuple[int, float]]:
    client = mlflow.MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    return [(m.step, m.value) for m in client.get_metric_history(run_id, "loss")]


@pytest.mark.slow
def test_a_killed_sender_is_replaced_and_nothing_is_doubled(project: Path, senders: Senders) -> None:
    with open_run(project, "paco/x", "x", {}) as tracker:
        (home,) = (project / FOLDER).iterdir()
        begun = (home / "events.jsonl").stat().st_size
        for step in range(3000):
            tracker.metrics({"loss": float(step)}, step)
        until(lambda: RunJournal(home).delivered().offset > begun)
        senders[0].kill()  # in the middle of its work
        until(lambda: len(senders) == 2)
    run = runs(project)["x"]
    assert run.info.status == "FINISHED" and tracker.run_id == run.info.run_id
    assert losses(project, run.info.run_id) == [(step, float(step)) for step in range(3000)]
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
    stage.communicate(timeout=60)  # returns at once only where nobody else holds the pipes
    address = SenderAddress.from_environment(project, os.environ)
    assert address.is_served()
    pid = int(address.file.read_text().split()[1])
    until(lambda: unsent(project) == 0)
    run = runs(project)["x"]
    assert (run.info.run_id, run.info.status) == (run_id, "KILLED")
    assert len(losses(project, run_id)) == 100
    shutil.rmtree(project / ".paco", ignore_errors=True)  # which the sender is still clearing up
    until(lambda: not runs_on(pid))


@pytest.mark.slow
def test_a_sender_asks_a_dead_server_once_for_what_was_left_and_goes(
    project: Path, senders: Senders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # nobody listens on the discard port
    monkeypatch.setenv("PACO_SENDER_IDLE_S", "0.2")
    said: list[str] = []
    with open_run(project, "paco/x", "x", {}, say=said.append) as tracker:
        assert tracker.run_id is None, "the store has refused, nobody waits for more"
    assert "does not accept figures now" in said[0] and "2 events of this run wait in" in said[1]
    assert senders[0].wait(60) == 0 and unsent(project) == 1
    assert [*(project / outbox.FOLDER).iterdir()] == []
    assert send_left_over(project).waiting == 2


def test_who_finds_a_sender_that_goes_starts_another_one(project: Path) -> None:
    address = SenderAddress.from_environment(project, os.environ)
    address.file.parent.mkdir(parents=True)
    going = try_hold(address.file)
    assert going is not None and address.is_served()
    with open_run(project, "paco/x", "x", {}):
        assert SenderAddress.from_environment(project, os.environ) == address
        going.close()
    assert runs(project)["x"].info.status == "FINISHED"


def fails(*_args: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])


def has_no_space(*_args: object) -> subprocess.Popen[bytes]:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(("start", "reason"), [(fails, "ended with 3, see"), (has_no_space, "No space left")])
def test_a_sender_that_cannot_run_is_told_of_and_not_waited_for(
    project: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[..., Any], reason: str
) -> None:
    monkeypatch.setattr(outbox, "start", start)
    said: list[str] = []
    with open_run(project, "paco/x", "x", {}, say=said.append) as tracker:
        assert tracker.run_id is None
    assert reason in said[0] and "2 events of this run wait in" in said[1] and len(said) == 2
    assert send_left_over(project).waiting == 0 and runs(project)["x"].info.status == "FINISHED"


def test_a_journal_that_nobody_can_read_stops_no_other(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    header = {"uri": tracking.tracking_uri(project), "kind": "run"}
    torn = RunJournal.begin(project, header), RunJournal.begin(project, header)
    for journal, first in zip(torn, (json.dumps(header), "\0\0\0"), strict=True):
        journal.events.write_text(f"{first}\n\0\0\0\n")
        journal._alive.close()  # type: ignore[union-attr]  (its writer was killed)
    with open_run(project, "paco/x", "x", {}) as tracker:
        assert tracker.run_id
    assert runs(project)["x"].info.status == "FINISHED"
    assert all(journal.home.is_dir() for journal in torn)
    complaints = capfd.readouterr().err.count("not an event")
    assert 2 <= complaints <= 4, "of each at the sender's start and the stage's, not at every look"
    problems = sorted(send_left_over(project).problems)
    assert len(problems) == 2
    for journal, problem in zip(sorted(torn, key=lambda journal: journal.home), problems, strict=True):
        assert problem.startswith(f"{journal.events}, byte ") and "does not block the others" in problem


def test_a_sender_serves_one_environment_and_shows_nothing_of_it(project: Path) -> None:
    ours = SenderAddress.from_environment(project, {"MLFLOW_TRACKING_PASSWORD": "hunter2", "HOME": "/a"})
    assert ours == SenderAddress.from_environment(project, {"HOME": "/b", "MLFLOW_TRACKING_PASSWORD": "hunter2"})
    others = [{"MLFLOW_TRACKING_PASSWORD": "hunter3"}, {}, {"AWS_SESSION_TOKEN": "x"}]
    assert len({ours.key, *(SenderAddress.from_environment(project, other).key for other in others)}) == 4
    assert re.fullmatch("[0-9a-f]{16}", ours.key)


@pytest.mark.slow
def test_one_sender_serves_all_stages_but_those_with_other_credentials(
    project: Path, senders: Senders, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_run(project, "paco/x", "first", {}) as first, open_run(project, "paco/x", "second", {}) as second:
        assert first.run_id and second.run_id
    with open_run(project, "paco/x", "third", {}):
        pass
    assert len([sender for sender in senders if sender.poll() is None]) == 1
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "hunter2")
    with open_run(project, "paco/x", "fourth", {}):
        pass
    assert len([sender for sender in senders if sender.poll() is None]) == 2
    assert [run.info.status for run in runs(project).values()] == ["FINISHED"] * 4
    files = [*(project / outbox.FOLDER).iterdir()]
    assert len(files) == 2 and not any("hunter2" in str(file) + file.read_text() for file in files)
    assert (project / outbox.FOLDER).stat().st_mode & 0o077 == 0
