"""The process of a run is killed, or everything is: the daemon retries the run and frees its slot in the pool."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

import dvc_graphs as graphs
from tests.support import waiting

GRAPH = """
stages:
  a:
    cmd: python stage.py
    deps: [stage.py]
    outs: [a.out]
    meta: {dagster: {pool: gpu}}
"""
STAGE = """
import os, pathlib, time
pathlib.Path(f"stage-{os.getpid()}").touch()
while not pathlib.Path("go").exists(): time.sleep(.05)
pathlib.Path("a.out").write_text("done")
"""
CODE = """
import sys
from pathlib import Path
import dagster as dg
from dagster_dvc import DvcProject, build_whole_graph_job, in_process_if_up_to_date
sys.path.append({here!r})
import dvc_graphs as graphs

project = DvcProject(Path({root!r}))
processes = dg.multiprocess_executor.configured({{"start_method": {{"forkserver": {{}}}}}})
defs = dg.Definitions.merge(
    graphs.definitions(project.root),
    dg.Definitions(jobs=[build_whole_graph_job(project)], executor=in_process_if_up_to_date(processes, project)),
)
"""


@contextmanager
def _daemon(root: Path, home: Path) -> Iterator[psutil.Process]:
    command = [str(Path(sys.executable).with_name("dagster-daemon")), "run", "-f", "defined.py"]
    with (root / "daemon.log").open("ab") as log:
        daemon = subprocess.Popen(
            command, cwd=root, env={**os.environ, "DAGSTER_HOME": str(home)}, stdout=log, stderr=log
        )
    try:
        yield psutil.Process(daemon.pid)
    finally:
        daemon.terminate()
        daemon.wait(60)


def _stages(root: Path) -> list[psutil.Process]:
    """Processes of the stage that live."""
    processes = []
    for file in root.glob("stage-*"):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(file.name.removeprefix("stage-")))
            if process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


def _victims(victim: str, daemon: psutil.Process, stage: psutil.Process) -> list[psutil.Process]:
    """The processes to kill: that of the run, or the daemon with all that it started, as a power cut does."""
    if victim == "everything":
        return [daemon, *daemon.children(recursive=True)]
    return [next(process for process in stage.parents() if "multiprocessing.spawn" in " ".join(process.cmdline()))]


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", ["the run", "everything"])
def test_a_run_that_was_killed_is_retried_and_the_pool_is_free_at_its_end(tmp_path: Path, victim: str) -> None:
    root, home = graphs.make(tmp_path / "project", GRAPH, stage__py=STAGE), tmp_path / "home"
    (root / "defined.py").write_text(CODE.format(here=graphs.FOLDER, root=str(root)))
    with graphs.monitored_instance(home) as instance:

        def statuses() -> list[str]:
            return sorted(run.status.value for run in instance.get_runs())

        with _daemon(root, home) as daemon:
            launch = [sys.executable, "-m", "dagster", "job", "launch", "-f", "defined.py", "-j", "whole_graph"]
            subprocess.run(launch, cwd=root, env={**os.environ, "DAGSTER_HOME": str(home)}, check=True)
            waiting.until(lambda: _stages(root), 120)
            (stage,) = _stages(root)
            for process in _victims(victim, daemon, stage):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            waiting.until(lambda: not stage.is_running(), 30)
            if victim == "everything":
                daemon.wait(30)
        with _daemon(root, home):
            waiting.until(lambda: [running for running in _stages(root) if running != stage], 180)
            (root / "go").touch()
            waiting.until(lambda: statuses() == ["FAILURE", "SUCCESS"], 120)
            waiting.until(lambda: not instance.event_log_storage.get_concurrency_info("gpu").active_slot_count, 60)
