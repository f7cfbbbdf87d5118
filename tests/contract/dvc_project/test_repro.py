"""Several stages at a time through ``python -m dvc_project.repro``: the graph of a plain ``dvc repro``, sooner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

import dvc_graphs as graphs
from dvc_project import process_group, repro
from dvc_project.errors import DvcProjectError
from dvc_project.file_locks import is_held
from dvc_project.process_group import DVC, search_path
from dvc_project.project import DvcProject
from paco_core.runtime.launch import lock_file
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
LACKING = """
stages:
  bad:
    cmd: python put.py bad.out nowhere.txt
    deps: [nowhere.txt]
    outs: [bad.out]
"""
WAITING = """
import os, pathlib, time
pathlib.Path("pid.part").write_text(str(os.getpid()))
pathlib.Path("pid.part").rename("pid")
while not pathlib.Path("go").exists():
    time.sleep(0.02)
pathlib.Path("bad.out").write_text("made")
"""
#: As paco's own stages: one process at a time.
ALONE = """
from pathlib import Path
from paco_core.runtime.launch import only_run
with only_run(Path.cwd(), "bad"):
    exec(Path("waiting.py").read_text())
"""
#: Tells which DVC has it run: each leads a session. Between it and the stage may be a shell.
CALLED = """
import os, sys
open(sys.argv[1], "w").write(str(os.getsid(0)))
"""
#: `split` can only come after `second`; then there are two.
FORKED = """
stages:
  first:
    cmd: python called.py first.out
    outs: [first.out]
  second:
    cmd: python called.py second.out
    deps: [first.out]
    outs: [second.out]
  split:
    matrix: {of: [0, 1]}
    cmd: python called.py split${item.of}.out
    deps: [second.out]
    outs: ["split${item.of}.out"]
  third:
    cmd: python called.py third.out
    deps: [split0.out, split1.out]
    outs: [third.out]
  last:
    cmd: python called.py last.out
    deps: [third.out, %s]
    outs: [last.out]
"""
DEADLINE_S = 120.0
CODE = os.pathsep.join(map(str, [REPOSITORY, Path(repro.__file__).parent.parent]))
REPRO = [sys.executable, "-m", "dvc_project.repro"]


def test_stages_that_do_not_need_each_other_run_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = graphs.make(tmp_path / "project", DIAMOND, meet__py=MEET)
    assert repro.reproduce(root, jobs=2) == 0
    said = capfd.readouterr().out
    assert [line for line in said.splitlines() if "didn't change" in line] != [], "the plain dvc repro came last"
    assert said.index("[first] done") < said.index("[left] done") < said.index("[last] done")
    assert (root / "last.out").read_text() == "helloleft" + "helloright"
    assert graphs.changed(root, DvcProject(root)) == set()


def test_stages_that_could_only_follow_one_another_share_a_dvc(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = graphs.make(tmp_path / "project", FORKED % "nowhere.txt", called__py=CALLED)
    assert repro.single_file(repro.stages_to_run(DvcProject(root))) == ["first", "second"]
    assert repro.reproduce(root, jobs=2) == 1
    said = capfd.readouterr().out
    told = [line.split(" in ")[0] for line in said.splitlines() if " in " in line and line.startswith("[")]
    assert told[:2] == ["[first] done", "[second] done"] and set(told[2:4]) == {"[split@0] done", "[split@1] done"}
    assert told[4] == "[third] done" and told[5].startswith("[last] FAILED") and "last failed; what is finished" in said
    called = {name: (root / f"{name}.out").read_text() for name in ("first", "second", "split0", "split1", "third")}
    assert called["first"] == called["second"] and len(set(called.values())) == 4
    (root / "nowhere.txt").touch()
    assert repro.reproduce(root, jobs=2) == 0
    assert "[third]" not in capfd.readouterr().out and (root / "last.out").is_file()


def test_only_what_is_out_of_date_is_started(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = graphs.make_chain(tmp_path / "project")
    graphs.dvc(root, "repro", "-q")
    assert repro.stages_to_run(DvcProject(root)) == {}
    assert repro.reproduce(root, jobs=2) == 0
    assert "done in" not in capfd.readouterr().out
    graphs.dvc(root, "remove", "b")
    (root / "dvc.yaml").write_text(graphs.CHAIN)
    assert repro.stages_to_run(DvcProject(root)) == {"b": set(), "c": {"b"}}


def test_after_a_failure_nothing_starts_and_the_next_run_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = graphs.make(tmp_path / "project", FAILING, stage__py="raise SystemExit('no ink')")
    assert repro.reproduce(root, jobs=2) == 1
    said = capfd.readouterr().out
    assert "[bad] no ink" in said and "[bad] FAILED" in said and "bad failed; what is finished is kept" in said
    assert (root / "good.out").is_file() and not (root / "after.out").exists()
    assert "good" in DvcProject(root).lock(), "what ran beside the failure is kept"
    (root / "stage.py").write_text("open('bad.out', 'w').write('made')")
    assert repro.reproduce(root, jobs=2) == 0
    assert "[good]" not in capfd.readouterr().out and (root / "after.out").read_text() == "made"


def test_the_reason_is_dvcs_own_where_the_stage_has_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = graphs.make(tmp_path / "project", LACKING)
    assert repro.reproduce(root, jobs=2) == 1
    said = [line for line in capfd.readouterr().out.splitlines() if line.startswith("[bad]")]
    (reason,) = [line for line in said if "ERROR: failed to reproduce 'bad'" in line]
    assert "nowhere.txt" in reason and said[-1].startswith("[bad] FAILED (dvc ended with 255)")


@pytest.mark.parametrize("git", [False, True])
def test_a_stage_that_goes_well_is_told_without_the_chatter_of_dvc(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], git: bool
) -> None:
    root = graphs.make_chain(tmp_path / "project")
    if git:  # then DVC tells what to add to it
        subprocess.run(["git", "init", "-q"], cwd=root, check=True)
        (root / ".dvc/config").write_text("[core]\n    analytics = false\n    check_update = false\n")
    (root / "put.py").write_text(graphs.PUT + "print('put', target)")
    assert repro.reproduce(root, jobs=2) == 0
    said = [line.partition(" in ")[0] for line in capfd.readouterr().out.splitlines() if line.startswith("[")]
    assert said == [f"[{name}] {text}" for name in "abc" for text in (f"put {name}.out", "done")]


until = partial(waiting.until, seconds=DEADLINE_S)


def holders(root: Path) -> set[int]:
    """The processes for which DVC locked what they write."""
    try:
        locks = json.loads((root / ".dvc/tmp/rwlock").read_text())
    except ValueError:  # it is being written
        return {-1}
    return {lock["pid"] for lock in locks.get("write", {}).values()}


def gone(process: int) -> bool:
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
    until(lambda: gone(stage) and gone(dvc))
    assert holders(root) == set()
    (root / "go").touch()
    assert repro.reproduce(root, jobs=2) == 0
    assert (root / "after.out").read_text() == "made"


def test_after_kill_9_of_the_run_and_its_watchdog_the_next_one_says_who_still_runs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = graphs.make(tmp_path / "project", FAILING, stage__py=WAITING)
    run = subprocess.Popen(REPRO, cwd=root, env={**os.environ, "PYTHONPATH": CODE})
    until(lambda: (root / "pid").exists() and "good" in DvcProject(root).lock() and len(holders(root)) == 1)

    def dogs() -> list[psutil.Process]:
        return [child for child in psutil.Process(run.pid).children() if process_group.__file__ in child.cmdline()]

    until(lambda: len(dogs()) == 1)  # forked, and turned into the watchdog
    dogs()[0].kill()
    run.kill()
    assert run.wait() == -signal.SIGKILL
    (orphan,) = holders(root)
    assert repro.reproduce(root, jobs=2) == 1
    said = capfd.readouterr().out
    assert "[bad] ERROR: failed to reproduce 'bad'" in said and f"(PID {orphan}): " in said
    (root / "go").touch()
    until(lambda: holders(root) == set())
    assert repro.reproduce(root, jobs=2) == 0
    assert (root / "after.out").read_text() == "made"


def test_after_kill_9_of_dvc_its_stage_is_not_started_a_second_time(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", CODE)
    root = graphs.make(tmp_path / "project", FAILING, stage__py=ALONE, waiting__py=WAITING)
    environment = {**os.environ, "PATH": search_path()}
    run = subprocess.Popen([*DVC, "repro", "--single-item", "bad"], cwd=root, env=environment)
    until((root / "pid").exists)
    run.kill()
    assert run.wait() == -signal.SIGKILL
    orphan = int((root / "pid").read_text())
    assert repro.reproduce(root, jobs=2) == 1
    assert f"stage bad still runs as process {orphan} (started by a run" in capfd.readouterr().out
    os.kill(orphan, signal.SIGKILL)  # whoever started these tests may have SIGTERM ignored
    until(lambda: not is_held(lock_file(root, "bad")))
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
    said = run.communicate(timeout=DEADLINE_S)[0].decode()
    lines = [line for line in said.splitlines() if not line.startswith("[")]
    assert run.returncode == 1 and lines == ["repro: stopped; the next run resumes from here"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((root / "pid").read_text()), 0)
    (root / "go").touch()
    assert repro.reproduce(root, jobs=2) == 0
    assert (root / "after.out").read_text() == "made"


def test_a_malformed_graph_is_told_in_a_line(tmp_path: Path) -> None:
    root = graphs.make(tmp_path / "project", "stages: {a: {outs: [a]}}")
    env = {**os.environ, "PYTHONPATH": CODE}
    done = subprocess.run(REPRO, cwd=root, env=env, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("repro: ") and "cmd is missing" in done.stderr


#: `head` always runs and writes the same bytes.
ALWAYS = """
stages:
  head:
    cmd: python put.py head.out head
    always_changed: true
    outs: [head.out]
  left:
    cmd: python put.py left.out head.out
    deps: [head.out]
    outs: [left.out]
  right:
    cmd: python put.py right.out head.out ${a.text}
    params: [a.text]
    deps: [head.out]
    outs: [right.out]
"""


def test_a_stage_behind_one_that_wrote_the_same_bytes_is_not_started(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = graphs.make(tmp_path / "project", ALWAYS)
    assert repro.reproduce(root, jobs=2) == 0
    said = capfd.readouterr().out
    assert all(f"[{name}] done" in said for name in ("head", "left", "right"))
    assert repro.reproduce(root, jobs=2) == 0
    said = capfd.readouterr().out
    assert "[head] done" in said and "[left]" not in said and "[right]" not in said


@pytest.mark.parametrize("cut", [0, 9, 200])
def test_after_a_torn_lock_is_moved_away_nothing_runs_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], cut: int
) -> None:
    """A DVC that is killed while it writes ``dvc.lock`` leaves its beginning."""
    root = graphs.make_chain(tmp_path / "project")
    graphs.dvc(root, "repro", "-q")
    whole = (root / "dvc.lock").read_bytes()
    (root / "dvc.lock").write_bytes(whole[:cut])
    (root / ".dvc/tmp/rwlock").write_text('{"a')
    with pytest.raises(DvcProjectError, match=r"dvc\.lock: .*; restore it with `git checkout -- dvc"):
        repro.reproduce(root, jobs=2)
    (root / "dvc.lock").unlink()
    assert repro.reproduce(root, jobs=1) == 0
    assert (root / "dvc.lock").read_bytes() == whole and "Running stage" not in capfd.readouterr().out
