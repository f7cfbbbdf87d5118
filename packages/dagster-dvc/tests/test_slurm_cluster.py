"""Stages on Slurm, with stand-ins for its commands."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

import dvc_graphs as graphs
from dagster_dvc import DvcProject, DvcResource, build_dvc_assets
from dagster_dvc.slurm import SlurmDvcResource
from test_stopping import GRAPH, STAGE, _has_ended, _locked, _number

pytestmark = pytest.mark.slow

#: A queue of one node: a job is a process of this machine. The jobs that ran, their options and signals stay readable.
SLURM = {
    "sbatch": """
for last; do
  case "$last" in
    --output=*) out="${last#*=}" ;;
    --error=*) err="${last#*=}" ;;
    --partition=nowhere) echo "sbatch: error: invalid partition specified: nowhere" >&2; exit 1 ;;
  esac
done
echo "$@" >> "$HOME_OF_SLURM/submitted"
setsid bash "$last" > "$out" 2> "$err" < /dev/null &
echo $! > "$HOME_OF_SLURM/17"
echo "17;cluster"
""",
    "squeue": """
case "$*" in *--jobs=17*) ;; *) exit 2 ;; esac
state=$(cut -d')' -f2 "/proc/$(cat "$HOME_OF_SLURM/17")/stat" 2>/dev/null | cut -c2)
if [ -z "$state" ] || [ "$state" = Z ]; then
  echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1
fi
echo RUNNING
""",
    "scancel": """
echo "$@" >> "$HOME_OF_SLURM/cancelled"
job=$(cat "$HOME_OF_SLURM/17")
case "$*" in *--signal=TERM*) kill -TERM "$job" ;; *) kill -KILL "-$job" 2>/dev/null ;; esac
exit 0
""",
    "sacct": "echo '  OUT_OF_ME+      0:125 '",
}
REPORTS = """
import pathlib
from dagster_pipes import open_dagster_pipes
pathlib.Path("a.out").write_text("made")
print("the stage speaks", flush=True)
with open_dagster_pipes() as pipes:
    pipes.report_asset_materialization(metadata={"rows": 7})
"""
ONE_STAGE = """
stages:
  a:
    cmd: python stage.py
    deps: [stage.py]
    outs: [a.out]
    meta: {dagster: {pool: gpu}}
"""
#: A step as Dagster's executor starts it: a process of its own that gets SIGINT when its run is terminated.
STEP = """
import dagster as dg
from dagster_dvc import DvcProject, build_dvc_assets
from dagster_dvc.slurm import SlurmDvcResource
resource = SlurmDvcResource(project_dir={root!r}, poll_seconds=0.05, grace_seconds=2)
done = dg.materialize(build_dvc_assets(DvcProject({root!r})), resources={{"dvc": resource}}, raise_on_error=False)
for event in done.all_events:
    if event.event_type_value == "STEP_FAILURE":
        print(event.step_failure_data.user_failure_data.description)
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands on the path; their notes lie in the folder that this returns."""
    home, commands = tmp_path / "slurm", tmp_path / "bin"
    home.mkdir()
    commands.mkdir()
    for name, text in SLURM.items():
        (commands / name).write_text(f"#!/bin/bash\nHOME_OF_SLURM={home}\n{text}")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    return home


def materialise(root: Path, resource: DvcResource, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    assets = build_dvc_assets(DvcProject(root))
    return dg.materialize(assets, resources={"dvc": resource}, instance=instance, raise_on_error=False)


def outcome(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = result.get_asset_materialization_events()
    return {name: value.value for name, value in event.materialization.metadata.items()}


def failure(result: dg.ExecuteInProcessResult) -> str:
    (event,) = [e for e in result.all_events if e.event_type_value == "STEP_FAILURE"]
    return str(event.step_failure_data.user_failure_data.description)


def started(root: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", STEP.format(root=str(root))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_stage_is_a_job_with_the_options_of_its_pool(tmp_path: Path, slurm: Path, capfd: Any) -> None:
    root = graphs.make(tmp_path / "project", ONE_STAGE, stage__py=REPORTS)
    resource = SlurmDvcResource(
        project_dir=str(root), options=["--time=2:00"], pools={"gpu": ["--gres=gpu:1"]}, setup="export A=1",
        poll_seconds=0.1,
    )  # fmt: skip
    with dg.DagsterInstance.ephemeral() as instance:
        first = outcome(materialise(root, resource, instance))
        printed = capfd.readouterr().out
        locked = (root / "dvc.lock").read_bytes()
        second = outcome(materialise(root, resource, instance))
    assert (first["dvc/outcome"], first["rows"]) == ("executed", 7), "Pipes reaches the stage through the job"
    assert second["dvc/outcome"] == "unchanged" and (root / "dvc.lock").read_bytes() == locked
    assert yaml.safe_load(locked)["stages"]["a"]["outs"][0]["path"] == "a.out"
    assert "the stage speaks" in printed
    (submitted,) = (slurm / "submitted").read_text().splitlines()  # none for a stage that is up to date
    words = ("--time=2:00 --gres=gpu:1", "--signal=B:TERM@28", "--job-name=dvc-a")
    assert all(word in submitted for word in words)


def test_what_slurm_refuses_or_ends_and_what_fails(tmp_path: Path, slurm: Path) -> None:
    root = graphs.make(tmp_path / "project", ONE_STAGE, stage__py="import sys; sys.exit('no luck today')")
    with dg.DagsterInstance.ephemeral() as instance:
        nowhere = SlurmDvcResource(project_dir=str(root), options=["--partition=nowhere"])
        assert "nvalid partition" in failure(materialise(root, nowhere, instance))
        resource = SlurmDvcResource(project_dir=str(root), poll_seconds=0.05)
        assert "no luck today" in failure(materialise(root, resource, instance))
        assert not (root / "dvc.lock").exists() and _locked(root) == {}
        killer = SlurmDvcResource(project_dir=str(root), poll_seconds=0.05, setup=f"kill -KILL $$  # {root}")
        assert "job 17: OUT_OF_ME+ 0:125" in failure(materialise(root, killer, instance))


@pytest.mark.parametrize("behavior", ["obedient", "stubborn"])
def test_a_terminated_run_cancels_its_job_which_tidies_up(tmp_path: Path, slurm: Path, behavior: str) -> None:
    root = graphs.make(tmp_path / "project", GRAPH.format(behavior=behavior), stage__py=STAGE)
    step = started(root)
    stage = _number(root / "pid")
    assert _locked(root)
    step.send_signal(signal.SIGINT)
    _, stderr = step.communicate(timeout=120)
    graphs.until(lambda: _has_ended(stage))
    assert "--batch --signal=TERM 17" in (slurm / "cancelled").read_text()
    assert not (root / "half").exists() and (root / "kept").read_text() == "a checkpoint"
    assert _locked(root) == {} and not (root / "dvc.lock").exists()
    assert "removed the half-written half" in stderr, "what the job printed last arrives"
