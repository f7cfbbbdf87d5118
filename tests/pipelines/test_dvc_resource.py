"""Materialising through the real DVC: outcomes, versions, Pipes, failures, and stops."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import graphs
import pytest

from pipelines.dvc import DvcProject, DvcResource, dvc_asset
from pipelines.dvc.process import Completed, end_group, run_group
from pipelines.dvc.resource import FAILURE_CHARACTERS, _failure

REPORTS = """
import os, pathlib
from dagster_pipes import open_dagster_pipes
pathlib.Path("a.out").write_text("made")
with open_dagster_pipes() as pipes:
    pipes.report_asset_materialization(metadata={"rows": 7})
"""


def _materialise(root: Path, *names: str, instance: dg.DagsterInstance, partition: str | None = None) -> list:
    defs = graphs.definitions(root)
    result = dg.materialize(
        [asset for asset in defs.assets or [] if asset.key.to_user_string() in names],
        resources=defs.resources, instance=instance, partition_key=partition,
    )  # fmt: skip
    return [event.materialization for event in result.get_asset_materialization_events()]


def test_executed_unchanged_restored(tmp_path: Path) -> None:
    root = graphs.make(tmp_path, graphs.CHAIN)
    with dg.DagsterInstance.ephemeral() as instance:
        outcomes, versions = [], []
        for text in ("hello", "hello", "bye", "hello"):
            (root / "params.yaml").write_text(f"a: {{text: {text}}}\n")
            (made,) = _materialise(root, "a", instance=instance)
            outcomes.append(made.metadata["dvc/outcome"].value)
            versions.append(made.tags["dagster/data_version"])
            entry = DvcProject(root).lock()["a"]
            assert versions[-1] == entry.outs["a.out"]
            assert made.tags["dvc/lock_digest"] == entry.digest
    assert outcomes == ["executed", "unchanged", "executed", "restored"]
    assert versions[0] == versions[1] == versions[3] != versions[2]
    assert (root / "a.out").read_text() == "hello"


def test_the_stage_reports_through_pipes_and_a_partition_is_one_item(tmp_path: Path) -> None:
    graph = """
stages:
  a:
    matrix: {n: [x, y], m: ["1", "2"]}
    cmd: python report.py ${item.n} ${item.m}
    deps: [report.py]
    outs: ["out/${item.m}${item.n}"]
"""
    code = REPORTS.replace(
        'pathlib.Path("a.out").write_text("made")',
        "import sys\nn, m = sys.argv[1:]\n"
        'os.makedirs("out", exist_ok=True)\npathlib.Path(f"out/{m}{n}").write_text("z")',
    )
    root = graphs.make(tmp_path, graph, report__py=code)
    with dg.DagsterInstance.ephemeral() as instance:
        key = dg.MultiPartitionKey({"n": "y", "m": "1"})
        (made,) = _materialise(root, "a", instance=instance, partition=key)
    assert made.metadata["rows"].value == 7 and made.metadata["dvc/outcome"].value == "executed"
    assert made.partition == key
    assert sorted(p.name for p in (root / "out").iterdir() if p.name != ".gitignore") == ["1y"]


def test_failure_shows_the_end_of_stderr_and_is_capped(tmp_path: Path) -> None:
    graph = "stages: {a: {cmd: python bad.py, outs: [a.out]}}"
    bad = "import sys\nsys.stderr.write('x' * 9000 + '\\n')\nsys.exit('the last word')\n"
    root = graphs.make(tmp_path, graph, bad__py=bad)
    defs = graphs.definitions(root)
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize(
            list(defs.assets or []), resources=defs.resources, instance=instance, raise_on_error=False
        )
        (event,) = [e for e in result.all_events if e.is_step_failure]
        text = event.step_failure_data.user_failure_data.description
    assert text.startswith("stage a failed (dvc ended with")
    assert "the last word" in text and len(text) <= FAILURE_CHARACTERS


def test_a_stage_that_runs_elsewhere_is_reported_as_busy(tmp_path: Path) -> None:
    root = graphs.make(tmp_path, graphs.CHAIN)
    holder = {"pid": os.getpid(), "cmd": "dvc repro a"}
    lock = {"write": {str(root / "a.out"): holder}, "read": {}}
    (root / ".dvc" / "tmp" / "rwlock").write_text(json.dumps(lock))
    defs = graphs.definitions(root)
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize(
            list(defs.assets or [])[:1], resources=defs.resources, instance=instance, raise_on_error=False
        )
        (event,) = [e for e in result.all_events if e.is_step_failure]
        text = event.step_failure_data.user_failure_data.description
    assert text.startswith("stage a is busy") and f"PID {os.getpid()}" in text


def test_long_failures_keep_head_and_tail() -> None:
    stage = type("S", (), {"name": "a"})()
    text = _failure(stage, Completed(1, "", "é" * 20000 + "end", 1.0)).description or ""
    assert len(text) == FAILURE_CHARACTERS and text.endswith("end") and text.startswith("stage a failed")


def test_record_takes_what_lies_on_disk(tmp_path: Path) -> None:
    root = graphs.make(tmp_path, graphs.CHAIN)
    (root / "a.out").write_text("made on a cluster")

    @dvc_asset("a", project=DvcProject(root))
    def a(context: dg.AssetExecutionContext, dvc: DvcResource) -> dg.MaterializeResult:
        return dvc.record(context).result(where="cluster")

    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([a], resources={"dvc": DvcResource(project_dir=str(root))}, instance=instance)
        (made,) = [e.materialization for e in result.get_asset_materialization_events()]
    assert made.metadata["where"].value == "cluster"
    assert made.tags["dagster/data_version"] == DvcProject(root).lock()["a"].outs["a.out"]
    assert (root / "a.out").read_text() == "made on a cluster"


FAMILY = """
import pathlib, signal, subprocess, sys, time
stubborn = len(sys.argv) > 1
if stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    child = subprocess.Popen([sys.executable, __file__, "child"])
    pathlib.Path("child.pid").write_text(str(child.pid))
print("up", flush=True)
time.sleep(600)
"""


def _wait_for(path: Path) -> int:
    deadline = time.monotonic() + 120
    while not (path.is_file() and path.read_text()):
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.02)
    return int(path.read_text())


def _gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def test_stopping_a_group_ends_children_that_ignore_sigterm(tmp_path: Path) -> None:
    (tmp_path / "family.py").write_text(FAMILY)
    parent = subprocess.Popen(
        [sys.executable, "family.py"], cwd=tmp_path, start_new_session=True, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    assert [parent.stdout.readline(), parent.stdout.readline()] == [b"up\n", b"up\n"]  # both handle signals now
    child = _wait_for(tmp_path / "child.pid")
    end_group(parent, grace_seconds=0.2)
    assert parent.returncode is not None
    _until(lambda: _gone(child))


def test_an_interrupt_reaches_the_stage_behind_dvc(tmp_path: Path) -> None:
    """What Dagster does on Terminate: an exception in the step's main thread."""
    stage = "import os, pathlib, time\npathlib.Path('pid').write_text(str(os.getpid()))\ntime.sleep(600)\n"
    root = graphs.make(tmp_path, "stages: {a: {cmd: python stage.py, outs: [a.out]}}", stage__py=stage)
    code = (
        "import sys, signal, os; from pathlib import Path; from pipelines.dvc.process import run_group\n"
        "signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))\n"
        f"env = {{**os.environ, 'PATH': {str(Path(sys.executable).parent)!r} + ':' + os.environ['PATH']}}\n"
        f"run_group([sys.executable, '-m', 'dvc', 'repro', 'a'], Path({str(root)!r}), env, 5)\n"
    )
    step = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stage_pid = _wait_for(root / "pid")
    step.send_signal(signal.SIGTERM)
    step.wait(timeout=60)
    _until(lambda: _gone(stage_pid))
    assert not (root / "dvc.lock").exists()


def _until(true: object) -> None:
    deadline = time.monotonic() + 60
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_output_is_forwarded_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = "import sys; print('said'); sys.stderr.write('warned\\n')"
    done = run_group([sys.executable, "-c", code], tmp_path, dict(os.environ), 1)
    assert (done.returncode, done.stdout, done.stderr) == (0, "said\n", "warned\n")
    assert "said" in capsys.readouterr().out
