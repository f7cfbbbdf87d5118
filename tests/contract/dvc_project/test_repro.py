"""Several stages at a time through ``python -m dvc_project.repro``: the graph of a plain ``dvc repro``, sooner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import dvc_graphs as graphs
from dvc_project import repro
from dvc_project.project import DvcProject
from tests.support import REPOSITORY, waiting

pytestmark = pytest.mark.slow

# `left` and `right` wait for each other: neither ends unless both run at once.
MEET = """
import pathlib, sys, time
name, other = sys.argv[1:]
pathlib.Path(f"{name}.up").touch()
end = time.monotonic() + 120
while not pathlib.Path(f"{other}.up").exists():
    assert time.monotonic() < end, f"{name} is alone"
    time.sleep(0.02)
pathlib.Path(f"{name}.out").write_text(pathlib.Path("first.out").read_text() + name)
"""
DIAMOND = """
stages:
  first:
    cmd: python put.py first.out ${a.text}
    params: [a.text]
    outs: [first.out]
  left:
    cmd: python meet.py left right
    deps: [first.out]
    outs: [left.out]
  right:
    cmd: python meet.py right left
    deps: [first.out]
    outs: [right.out]
  last:
    cmd: python put.py last.out left.out right.out
    deps: [left.out, right.out]
    outs: [last.out]
"""
FAILING = """
stages:
  bad:
    cmd: python stage.py
    deps: [stage.py]
    outs: [bad.out]
  good:
    cmd: python put.py good.out good
    outs: [good.out]
  after:
    cmd: python put.py after.out bad.out
    deps: [bad.out]
    outs: [after.out]
"""
WAITING = """
import os, pathlib, time
pathlib.Path("pid.part").write_text(str(os.getpid()))
pathlib.Path("pid.part").rename("pid")
while not pathlib.Path("go").exists():
    time.sleep(0.02)
pathlib.Path("bad.out").write_text("made")
"""
DEADLINE_S = 120.0
CODE = os.pathsep.join(map(str, [REPOSITORY, Path(repro.__file__).parent.parent]))
REPRO = [sys.executable, "-m", "dvc_project.repro"]


def test_stages_that_do_not_need_each_other_run_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = graphs.make(tmp_path / "project", DIAMOND, meet__py=MEET)
    assert repro.reproduce(root, jobs=2) == 0
    output = capfd.readouterr().out
    assert output.splitlines()[-1] == f"{len(DvcProject(root).stages)} stages are up to date", (
        "plain dvc repro came last"
    )
    assert output.index("[first] done") < output.index("[left] done") < output.index("[last] done")
    assert (root / "last.out").read_text() == "helloleft" + "helloright"
    assert graphs.changed(root, DvcProject(root)) == set()


def test_only_what_is_out_of_date_is_started(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = graphs.make_chain(tmp_path / "project")
    graphs.dvc(root, "repro", "-q")
    assert repro.stages_to_run(DvcProject(root)) == {}
    assert repro.reproduce(root, jobs=2) == 0
    assert "done in" not in capfd.readouterr().out
    graphs.dvc(root, "remove", "b")
    (root / "dvc.yaml").write_text(graphs.CHAIN)
    waits = repro.stages_to_run(DvcProject(root))
    assert waits == {"b": set(), "c": {"b"}} and repro.single_file(waits) == ["b", "c"], "they share a DVC"


def test_after_a_failure_nothing_starts_and_the_next_run_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = graphs.make(tmp_path / "project", FAILING, stage__py="raise SystemExit('no ink')")
    assert repro.reproduce(root, jobs=2) == 1
    output = capfd.readouterr().out
    assert "[bad] no ink" in output and "[bad] FAILED" in output
    assert (root / "good.out").is_file() and not (root / "after.out").exists()
    assert "good" in DvcProject(root).lock(), "what ran beside the failure is kept"
    (root / "stage.py").write_text("open('bad.out', 'w').write('made')")
    assert repro.reproduce(root, jobs=2) == 0
    assert "[good]" not in capfd.readouterr().out and (root / "after.out").read_text() == "made"


until = partial(waiting.until, seconds=DEADLINE_S)


def holders(root: Path) -> set[int]:
    """The processes for which DVC locked what they write."""
    try:
        locks = json.loads((root / ".dvc/tmp/rwlock").read_text())
    except ValueError:  # it is being written
        return {-1}
    return {lock["pid"] for lock in locks.get("write", {}).values()}


def has_ended(process: int) -> bool:
    """Whether a process has ended; a zombie that nobody collects has, too."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("jobs", [1, 2])
def test_kill_9_of_the_whole_run_ends_its_stages(tmp_path: Path, jobs: int) -> None:
    """By DVC's own way: Ctrl-C, after which it leaves no lock."""
    root = graphs.make(tmp_path / "project", FAILING, stage__py=WAITING)
    command = [*REPRO, "--jobs", str(jobs)]
    run = subprocess.Popen(command, cwd=root, env={**os.environ, "PYTHONPATH": CODE})
    until(lambda: (root / "pid").exists() and len(holders(root)) == 1)
    (dvc,), stage = holders(root), int((root / "pid").read_text())
    run.kill()
    assert run.wait() == -signal.SIGKILL
    until(lambda: has_ended(stage) and has_ended(dvc))
    assert holders(root) == set()
    (root / "go").touch()
    assert repro.reproduce(root, jobs=2) == 0
    assert (root / "after.out").read_text() == "made"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_reaches_every_stage(tmp_path: Path, number: signal.Signals) -> None:
    root = graphs.make(tmp_path / "project", FAILING, stage__py=WAITING)
    env = {**os.environ, "PYTHONPATH": CODE}
    run = subprocess.Popen(REPRO, cwd=root, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    until((root / "pid").exists)
    run.send_signal(number)
    run.send_signal(number)  # an impatient one: it cuts nothing short
    output = run.communicate(timeout=DEADLINE_S)[0].decode()
    lines = [line for line in output.splitlines() if not line.startswith("[")]
    assert run.returncode == 1 and lines == ["repro: stopped; the next run resumes from here"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((root / "pid").read_text()), 0)
    (root / "go").touch()
    assert repro.reproduce(root, jobs=2) == 0
    assert (root / "after.out").read_text() == "made"
