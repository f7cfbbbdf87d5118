"""The whole graph through the real dvc."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlflow
import pytest
import yaml

from dvc_project.file_locks import is_held
from paco_core.io.files import folder_digest
from paco_core.operations.audit import audit
from paco_core.runtime.checkpoints import stage_folder
from paco_core.runtime.launch import lock_file
from tests.e2e.conftest import changed_stages

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]
Dvc = Callable[..., subprocess.CompletedProcess[str]]
TRAININGS = ("reward_lora", "policies")
POLICIES = {  # stage -> model family
    "policies@flux_t2is": "flux",
    "policies@kontext_edit": "flux_kontext",
    "policies@qwen_edit": "qwen_image_edit",
}


def test_a_second_run_runs_nothing(dvc: Dvc) -> None:
    result = dvc("repro")
    ran = [line for line in result.stdout.splitlines() if line.startswith("Running stage")]
    assert result.returncode == 0 and ran == ["Running stage 'code':"]
    assert changed_stages(dvc) == set()


def test_each_stage_has_a_finished_run_with_its_inputs(smoke: Path) -> None:
    """By its tag, as the report finds it; what it logged as read has the md5s that dvc.lock records."""
    client = mlflow.MlflowClient(f"sqlite:///{smoke / 'mlflow.db'}")
    all_runs = client.search_runs([e.experiment_id for e in client.search_experiments()], order_by=["start_time"])
    stages = yaml.safe_load((smoke / "dvc.lock").read_text())["stages"]
    outs = {Path(out["path"]).parts[1] for stage in stages.values() for out in stage["outs"]} - {"code"}
    for label, stage in stages.items():
        if label == "code":
            continue
        runs = [run for run in all_runs if run.data.tags.get("dvc.stage") == label and run.info.status == "FINISHED"]
        assert runs, label
        name = str(runs[0].info.run_name)
        assert name.startswith(f"{label.replace('@', '/')}/smoke"), label
        reads = {dep["path"]: dep["md5"] for dep in stage["deps"]}
        code = json.loads((smoke / next(path for path in reads if path.startswith("data/code/"))).read_text())
        deps = {path.removeprefix("data/"): md5 for path, md5 in {**reads, **code["files"]}.items()}
        logged = {
            dataset_input.dataset.name: dataset_input.dataset.digest for dataset_input in runs[0].inputs.dataset_inputs
        }
        assert logged.items() <= deps.items(), label
        assert bool(logged) == any(Path(dep).parts[0] in outs for dep in deps), label


def test_a_training_repeated_gives_the_same_policy(smoke: Path) -> None:
    """Another process, another hash seed, other hours, no score known yet: the same bytes."""
    report = audit(smoke, only=["policies@flux_t2is"])
    assert report.check.metadata["outs"] == 1 and report.check.passed, report.check.description
    record = json.loads((smoke / "data/runs/policies@flux_t2is.json").read_text())
    assert record["run"]["mlflow_run"] and "mlflow_run" not in json.dumps(
        [
            link["run"]
            for link in json.loads((smoke / "data/policies/flux_t2is/provenance.json").read_text())["links"][1:]
        ]
    )


#: Runs stages, each in a forked process that is struck when its out is written and not yet renamed. The out of the
#: finished run is put aside meanwhile: DVC removes it before it runs a stage.
STRIKE = """
import json, os, signal, sys
from pathlib import Path
import diffusers, torch, transformers  # once for all: a fork spares the imports
from paco_core.stages import run_stage

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started deaf to it
replace, root = Path.replace, Path.cwd()

def strike(part, target):
    if Path(target) == out:
        os.kill(os.getpid(), number)
    return replace(part, target)

for label, path, number in json.loads(sys.argv[1]):
    out, aside = root / path, root / ".paco/aside"
    out.rename(aside)
    if (child := os.fork()) == 0:
        Path.replace = strike
        try:
            run_stage(label.partition("@")[0], label.partition("@")[2] or None, root)
        except KeyboardInterrupt:
            os._exit(130)
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = [p.name for p in out.parent.glob("*.part/*")]
    print(json.dumps([label, ended, out.exists(), left]), flush=True)
    aside.rename(out)
"""


def test_a_stage_struck_at_the_worst_moment_leaves_no_half_out(smoke: Path, dvc: Dvc) -> None:
    """kill -9 of every stage but the trainings, which resume and have tests of their own; then Ctrl-C of some."""
    stages = yaml.safe_load((smoke / "dvc.lock").read_text())["stages"]
    outs = {
        label: next(out["path"] for out in stage["outs"] if "/metrics/" not in out["path"])
        for label, stage in stages.items()
        if label != "code"
    }
    killed = [[label, out, int(signal.SIGKILL)] for label, out in outs.items() if not label.startswith(TRAININGS)]
    stopped = [[label, outs[label], int(signal.SIGINT)] for label in ("rankings", "grids@0")]
    command = [sys.executable, "-c", STRIKE, json.dumps(killed + stopped)]
    environment = {**os.environ, "PYTHONPATH": str(smoke)}
    result = subprocess.run(command, cwd=smoke, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [label for label, *_ in rows] == [label for label, *_ in killed + stopped]
    for number, (label, exit_code, exists, left) in enumerate(rows):
        part = Path(outs[label]).name
        assert not exists, f"{label}: half-written"
        assert (exit_code, part in left) == ((-signal.SIGKILL, True) if number < len(killed) else (130, False)), label
    assert changed_stages(dvc) == set(), "what is left over is no part of the data"
    for left_over in (smoke / "data").rglob(".*.part"):
        shutil.rmtree(left_over)


def kill_9(root: Path, dvc: Dvc, stage: str, ready: Callable[[], bool]) -> None:
    """Run a stage through DVC, and kill its process with signal 9 once it is under way and ``ready``."""
    lock = lock_file(root, stage)
    earlier = lock.read_text()  # the process of its finished run
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(dvc, "repro", "--force", "--single-item", stage)
        end = time.monotonic() + 240
        while not (is_held(lock) and lock.read_text() not in ("", earlier) and ready()):
            assert not run.done() and time.monotonic() < end, f"{stage} could not be killed in time"
            time.sleep(0.01)
        os.kill(int(lock.read_text().split()[0]), signal.SIGKILL)
        result = run.result()
    assert result.returncode and f"ERROR: failed to reproduce '{stage}'" in result.stderr
    assert not is_held(lock)


def test_a_training_killed_goes_on_from_its_checkpoint(smoke: Path, dvc: Dvc) -> None:
    """Last of all: it leaves a second run in MLflow. What the graph made before is put back."""
    stage, out, aside = "policies@flux_t2is", smoke / "data/policies/flux_t2is", smoke / ".paco/aside"
    checkpoints, finished = stage_folder(smoke, stage), smoke / ".paco/finished"
    unchanged_files = ("dvc.lock", "data/metrics/policies-flux_t2is.json", f"data/runs/{stage}.json")
    before = {name: (smoke / name).read_bytes() for name in unchanged_files}
    out.rename(aside)
    checkpoints.rename(finished)  # it would go on from the last one of the finished run
    try:
        kill_9(smoke, dvc, stage, lambda: any(checkpoints.glob("*/checkpoint-00001/state.json")))
        assert not out.exists(), "it was in its second and last epoch"
        result = dvc("repro", "--force", "--single-item", stage)  # by force, or DVC takes the out from its run cache
        assert result.returncode == 0 and "resumes after epoch 1 of 2" in result.stderr, result.stderr[-3000:]
        assert stage not in changed_stages(dvc), "the lock tells what lies there"
        assert folder_digest(out) == folder_digest(aside), "bit for bit, nothing missing, nothing half-written"
        assert all((smoke / name).is_file() for name in unchanged_files)
    finally:
        for copy_target, before_it in ((out, aside), (checkpoints, finished)):
            shutil.rmtree(copy_target, ignore_errors=True)
            before_it.rename(copy_target)
        for name, content in before.items():
            (smoke / name).write_bytes(content)
    assert changed_stages(dvc) == set()
