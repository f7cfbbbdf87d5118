"""Runs whose process was killed: Dagster's daemon detects them, and their steps end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import dagster as dg
import psutil
import pytest
from dagster._core.events import EngineEventData
from dagster._core.launcher import WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG

import dvc_graphs as graphs
from dagster_dvc.launcher import HOST_TAG, LocalRunLauncher
from dagster_dvc.process import interrupt_with_parent

# --- whether the process of a run lives ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tags", "pid", "status"),
    [
        ({GRPC_INFO_TAG: '{"socket": "/tmp/x"}'}, "own", WorkerStatus.RUNNING),
        ({GRPC_INFO_TAG: '{"socket": "/tmp/x"}'}, "ended", WorkerStatus.FAILED),
        ({GRPC_INFO_TAG: '{"socket": "/tmp/x"}'}, "reused", WorkerStatus.FAILED),
        ({GRPC_INFO_TAG: '{"host": "elsewhere", "port": 1}'}, "ended", WorkerStatus.RUNNING),
        ({HOST_TAG: "this machine"}, "ended", WorkerStatus.FAILED),
        ({HOST_TAG: "another machine"}, "ended", WorkerStatus.RUNNING),
        ({HOST_TAG: "this machine"}, "unknown", WorkerStatus.RUNNING),
    ],
)
def test_a_run_fails_only_if_its_process_on_this_machine_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tags: dict[str, str], pid: str, status: WorkerStatus
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "this machine")
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with graphs.monitored_instance(tmp_path) as instance:
        run = instance.create_run_for_job(dg.JobDefinition(name="job", graph_def=dg.GraphDefinition("g")), tags=tags)
        if pid != "unknown":
            number = process.pid if pid == "ended" else os.getpid()
            instance.report_engine_event("started", run, EngineEventData.in_process(number))
        if pid == "reused":  # by a process that is younger than the run
            monkeypatch.setattr(psutil.Process, "create_time", lambda _process: time.time() + 100)
        assert isinstance(instance.run_launcher, LocalRunLauncher)
        assert instance.run_launcher.check_run_worker_health(run).status == status


# --- a step ends with its run -------------------------------------------------------------------------------


def _step(pipe: Connection) -> None:
    interrupt_with_parent()
    try:
        pipe.send(os.getpid())
        signal.pause()
    except KeyboardInterrupt:
        pipe.send("interrupted")


def _run(pipe: Connection) -> None:
    multiprocessing.get_context("forkserver").Process(target=_step, args=(pipe,)).start()
    signal.pause()


@pytest.mark.slow
def test_a_step_is_interrupted_when_the_process_of_its_run_is_killed() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    run = context.Process(target=_run, args=(theirs,))
    run.start()
    assert ours.poll(240) and isinstance(ours.recv(), int)
    run.kill()
    assert ours.poll(240) and ours.recv() == "interrupted"
