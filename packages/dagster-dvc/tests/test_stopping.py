"""A stopped run leaves no process, no half-written out and no lock."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import dvc_graphs as graphs
from dagster_dvc import DvcProject
from dagster_dvc.process import Completed, remove_half_written, run_group
from dvc_project.rwlock import release_dead_locks

STAGE = """
import os, pathlib, signal, sys, time
if "stubborn" in sys.argv:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path("half").mkdir(exist_ok=True)
pathlib.Path("half/a").write_text("the first of two")
pathlib.Path("kept").write_text("a checkpoint")
pathlib.Path("pid").write_text(str(os.getpid()))
while not pathlib.Path("go").exists():
    time.sleep(0.05)
pathlib.Path("half/b").write_text("the second")
"""
GRAPH = """
stages:
  a:
    cmd: python stage.py {behavior}
    outs: [half, kept: {{persist: true}}]
"""
# A step as Dagster's executor starts it: a process of its own that gets SIGINT when its run is terminated.
STEP = """
import sys
import dagster as dg
sys.path.append({here!r})
import dvc_graphs as graphs
from pathlib import Path
defs = graphs.definitions(Path({root!r}))
dg.materialize(list(defs.assets), resources=defs.resources, raise_on_error=False)
"""


def _number(path: Path) -> int:
    graphs.until(lambda: path.is_file() and path.read_text())
    return int(path.read_text())


def _has_ended(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def _locked(root: Path) -> object:
    path = root / ".dvc" / "tmp" / "rwlock"
    lock = json.loads(path.read_text()) if path.is_file() else {}
    return {kind: paths for kind, paths in lock.items() if paths}


@pytest.mark.slow
@pytest.mark.parametrize("behavior", ["obedient", "stubborn"])
def test_a_terminated_run_leaves_nothing_behind(tmp_path: Path, behavior: str) -> None:
    root = graphs.make(tmp_path / "project", GRAPH.format(behavior=behavior), stage__py=STAGE)
    code = STEP.format(here=graphs.FOLDER, root=str(root))
    step = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    stage = _number(root / "pid")
    assert _locked(root), "DVC holds the out while its stage runs"
    step.send_signal(signal.SIGINT)
    _, stderr = step.communicate(timeout=120)
    assert _has_ended(stage)
    assert not (root / "half").exists() and (root / "kept").read_text() == "a checkpoint"
    assert _locked(root) == {} and not (root / "dvc.lock").exists()
    assert "removed the half-written half" in stderr
    assert ("released DVC's lock" in stderr) is (behavior == "stubborn"), "an obedient stage lets DVC tidy up itself"
    (root / "go").write_text("")
    graphs.dvc(root, "repro", "-q")
    assert sorted(p.name for p in (root / "half").iterdir()) == ["a", "b"]


@pytest.mark.slow
def test_a_killed_dvc_takes_its_stage_along(tmp_path: Path) -> None:
    """The kernel may kill DVC alone, for memory; its stage must not go on unseen."""
    root = graphs.make(tmp_path, GRAPH.format(behavior="obedient"), stage__py=STAGE)
    (root / "stage.py").write_text(STAGE.replace("while not", "os.kill(os.getpgrp(), signal.SIGKILL)\nwhile not", 1))
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    stopped: list[Completed] = []
    completed = run_group([sys.executable, "-m", "dvc", "repro", "a"], root, env, 5, stopped.append)
    assert completed.returncode == -signal.SIGKILL and stopped
    graphs.until(lambda: _has_ended(_number(root / "pid")))
    assert _locked(root) and release_dead_locks(root) and _locked(root) == {}


def test_only_locks_of_dead_processes_are_released(tmp_path: Path) -> None:
    root = graphs.make(tmp_path, graphs.CHAIN)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    alive, dead = ({"pid": pid, "cmd": "dvc repro"} for pid in (os.getpid(), process.pid))
    path = root / ".dvc" / "tmp" / "rwlock"
    path.write_text(json.dumps({"write": {"/a": alive, "/b": dead}, "read": {"/c": [dead, alive], "/d": [dead]}}))
    assert release_dead_locks(root) == [process.pid]
    assert _locked(root) == {"write": {"/a": alive}, "read": {"/c": [alive]}}
    assert release_dead_locks(root) == []
    path.write_text('{"write": {"/a": {}}}')  # not by DVC
    assert release_dead_locks(root) == [] and path.read_text() == '{"write": {"/a": {}}}'


@pytest.mark.parametrize("text", ["", "{", '{"write": {'])
def test_a_lock_file_that_a_killed_dvc_cut_off_is_removed(tmp_path: Path, text: str) -> None:
    """Every later DVC would refuse it."""
    path = graphs.make(tmp_path, graphs.CHAIN) / ".dvc" / "tmp" / "rwlock"
    path.write_text(text)
    with path.with_name("rwlock.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a DVC writes it now
        assert release_dead_locks(tmp_path) == [] and path.exists()
    assert release_dead_locks(tmp_path) == [] and not path.exists()


def test_what_the_lock_file_records_is_no_half(tmp_path: Path) -> None:
    root = graphs.make(tmp_path, graphs.CHAIN)
    graphs.dvc(root, "repro", "-q", "a")
    project = DvcProject(root)
    assert remove_half_written(project, project.stages["a"]) == []
    (root / "a.out").write_text("hel")
    assert remove_half_written(project, project.stages["a"]) == ["a.out"]
    assert remove_half_written(project, project.stages["a"]) == []
