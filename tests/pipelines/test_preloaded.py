"""The server that imports libraries for the stages of ``python -m pipelines.repro``: when there is one, and its end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from waiting import until

from dvc_project.project import DvcProject
from paco_core.config import profiles
from paco_core.config.params import load
from paco_core.io import gpus
from paco_core.io.nvidia_smi import Gpu
from paco_core.runtime.preloading import SOCKET, STAGES
from pipelines import preloaded

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux alone has process descriptors")
SERVER = "paco_core.runtime.preloading.server"


@pytest.fixture
def small(project: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real graph at the smoke profile, in which nothing has run, on a machine without a GPU."""
    for name in (gpus.VISIBLE, gpus.STAGES, gpus.SERVERS, "PACO_LAUNCHER"):
        monkeypatch.delenv(name, raising=False)
    (project / ".dvc/tmp").mkdir(parents=True)
    (project / ".dvc/config").write_text("[core]\n    no_scm = True\n    analytics = false\n    check_update = false\n")
    (project / "data").mkdir()
    shutil.copytree(repository / "data/zoo", project / "data/zoo")
    profiles.use(project, "smoke")
    return project


def environment(root: Path) -> dict[str, str]:
    repository = str(Path(preloaded.__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": repository, "TMPDIR": str(root / "temporary")}


def servers(run: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in run.children():
        with suppress(psutil.Error):  # one that has just ended
            if SERVER in child.cmdline():
                found.append(child)
    return found


def of(root: Path) -> list[psutil.Process]:
    """The processes that work in a project, besides those that bring figures to MLflow, which outlive a run."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.cwd() == str(root)
                and process.pid != os.getpid()
                and "sender" not in " ".join(process.cmdline())
            ):
                found.append(process)
        except psutil.Error:  # it has ended, or belongs to somebody else
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_when_the_run_is_stopped(small: Path, number: signal.Signals) -> None:
    (small / "temporary").mkdir()
    run = subprocess.Popen(
        [sys.executable, "-m", "pipelines.repro"], cwd=small, env=environment(small), start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        process = psutil.Process(run.pid)
        until(lambda: bool(servers(process)))
        (server,) = servers(process)
        until(lambda: bool(server.children()))  # the first stages that it runs
        stages = server.children()
        run.send_signal(number)
        run.wait(timeout=60)
        until(lambda: not of(small))
        assert not any(stage.is_running() for stage in stages)
        assert not any((small / "temporary").glob("paco-*"))
    finally:
        run.kill()
        run.wait()


def test_the_server_pays_where_several_stages_use_torch_on_a_processor(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    @contextmanager
    def server(_place: Path, _root: Path, threads: int, _environment: object) -> Iterator[None]:
        started.append(threads)
        yield

    monkeypatch.setattr(preloaded, "_server", server)
    graph = DvcProject(small)
    every = ["code", "prompts", "grids@0", "grids@1", "edits", "policies@flux_t2is"]

    def found(names: list[str]) -> str | None:
        with preloaded.preloaded(graph, names, {"A": "b"}) as environment:
            assert environment["A"] == "b" and (SOCKET in environment) == (STAGES in environment)
            return environment.get(STAGES)

    assert found(every) == "edits,grids,policies"
    assert found(["prompts", "rankings", "grids@0", "edits"]) is None, "two would import once each"
    assert started == [load(small / "params.yaml").threads]
    (deep := small / ("d" * 100)).mkdir()
    monkeypatch.setattr(preloaded.tempfile, "tempdir", str(deep))
    assert found(every) is None and not any(deep.iterdir()), "no socket has a path of that length"
    monkeypatch.setattr(preloaded.tempfile, "tempdir", None)
    monkeypatch.setattr(gpus, "visible", lambda: [Gpu("0", "GPU-1")])
    assert found(every) is None, "importing may ask the driver, and CUDA does not survive a fork"
    monkeypatch.setattr(gpus, "visible", list)
    monkeypatch.setenv("PACO_LAUNCHER", "ray")
    assert found(every) is None
    monkeypatch.delenv("PACO_LAUNCHER")
    (small / "params.yaml").write_text("threads: many")
    assert found(every) is None, "the run reports it"
    assert len(started) == 1
