"""Stages on a real Slurm: its controller, node daemon and munge run on this machine for the length of the tests."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import yaml

import dvc_graphs as graphs
import slurm_cluster
from dagster_dvc.slurm import SlurmDvcResource
from slurm_cluster import Cluster
from test_clusters import ONE, REPORTS, failure, materialise, outcome
from test_stopping import GRAPH, STAGE, _gone, _locked, _number

pytestmark = pytest.mark.skipif(slurm_cluster.missing() is not None, reason=str(slurm_cluster.missing()))

#: A step as Dagster's executor starts it: a process of its own that gets SIGINT when its run is terminated.
STEP = """
import dagster as dg
from dagster_dvc import DvcProject, build_dvc_assets
from dagster_dvc.slurm import SlurmDvcResource
resource = SlurmDvcResource(project_dir={root!r}, poll_seconds=0.1, grace_seconds=2)
done = dg.materialize(build_dvc_assets(DvcProject({root!r})), resources={{"dvc": resource}}, raise_on_error=False)
for event in done.all_events:
    if event.event_type_value == "STEP_FAILURE":
        print(event.step_failure_data.user_failure_data.description)
"""


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with slurm_cluster.cluster(tmp_path_factory.mktemp("slurm")) as found:
        yield found


@pytest.fixture
def slurm(daemons: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    for name, value in daemons.environment.items():
        monkeypatch.setenv(name, value)
    return daemons


def started(root: Path) -> "subprocess.Popen[str]":
    code = STEP.format(root=str(root))
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )


def test_a_stage_is_a_job_and_its_out_is_dvcs(tmp_path: Path, slurm: Cluster, capfd: pytest.CaptureFixture) -> None:
    shows = 'import subprocess, os\nprint(subprocess.run(["scontrol", "show", "job", os.environ["SLURM_JOB_ID"]]))\n'
    root = graphs.make(tmp_path / "project", ONE, stage__py=REPORTS + shows)
    resource = SlurmDvcResource(
        project_dir=str(root), options=["--time=5"], pools={"gpu": ["--gres=gpu:1"]}, poll_seconds=0.1
    )
    with dg.DagsterInstance.ephemeral() as instance:
        first = outcome(materialise(root, resource, instance))
        printed = capfd.readouterr().out
        locked = (root / "dvc.lock").read_bytes()
        second = outcome(materialise(root, resource, instance))
    assert (first["dvc/outcome"], first["rows"]) == ("executed", 7), "Pipes reaches the stage through the job"
    assert second["dvc/outcome"] == "unchanged" and (root / "dvc.lock").read_bytes() == locked
    assert yaml.safe_load(locked)["stages"]["a"]["outs"][0]["path"] == "a.out"
    assert "the stage speaks" in printed and "JobName=dvc-a" in printed and "TimeLimit=00:05:00" in printed
    assert "gpu:1" in printed, "the pool's options reach the job"
    graphs.dvc(root, "status", "-q")


def test_what_a_job_prints_arrives_while_it_runs(tmp_path: Path, slurm: Cluster) -> None:
    says = STAGE.replace("while not", 'print("half way", flush=True)\nwhile not', 1)
    root = graphs.make(tmp_path / "project", GRAPH.format(how="obedient"), stage__py=says)
    step = started(root)
    assert step.stdout is not None
    assert any("half way" in line for line in step.stdout), "before the job may end"
    (root / "go").write_text("")
    assert step.wait(120) == 0
    assert sorted(path.name for path in (root / "half").iterdir()) == ["a", "b"]


def test_a_failing_stage_and_options_that_slurm_refuses(tmp_path: Path, slurm: Cluster) -> None:
    root = graphs.make(tmp_path / "project", ONE, stage__py="import sys; sys.exit('no luck today')")
    with dg.DagsterInstance.ephemeral() as instance:
        refused = SlurmDvcResource(project_dir=str(root), options=["--partition=nowhere"])
        words = failure(materialise(root, refused, instance))
        assert "Slurm accepted no job" in words and "nvalid partition" in words
        resource = SlurmDvcResource(project_dir=str(root), poll_seconds=0.1)
        assert "no luck today" in failure(materialise(root, resource, instance))
    assert not (root / "dvc.lock").exists() and _locked(root) == {}


@pytest.mark.parametrize("how", ["obedient", "stubborn"])
def test_a_terminated_run_cancels_its_job(tmp_path: Path, slurm: Cluster, how: str) -> None:
    root = graphs.make(tmp_path / "project", GRAPH.format(how=how), stage__py=STAGE)
    step = started(root)
    stage = _number(root / "pid")
    assert _locked(root) and "dvc-a" in slurm.command("squeue", "--noheader", "--format=%j")
    step.send_signal(signal.SIGINT)
    _, said = step.communicate(timeout=120)
    graphs.until(lambda: _gone(stage))
    graphs.until(lambda: not slurm.command("squeue", "--noheader"))
    assert not (root / "half").exists() and (root / "kept").read_text() == "a checkpoint"
    assert _locked(root) == {} and not (root / "dvc.lock").exists()
    assert "removed the half-written half" in said, "what the job printed last arrives"


def test_a_job_that_is_cancelled_in_the_queue_fails_with_the_words_of_slurm(tmp_path: Path, slurm: Cluster) -> None:
    root = graphs.make(tmp_path / "project", GRAPH.format(how="obedient"), stage__py=STAGE)
    step = started(root)
    _number(root / "pid")
    slurm.command("scancel", "--name=dvc-a")
    printed, _ = step.communicate(timeout=120)
    assert "CANCELLED" in printed


def test_a_lost_node_fails_the_stage_and_the_next_run_goes_on(tmp_path: Path, slurm: Cluster) -> None:
    root = graphs.make(tmp_path / "project", GRAPH.format(how="obedient"), stage__py=STAGE)
    step = started(root)
    stage = _number(root / "pid")
    slurm.lose_node()
    assert _gone(stage)
    printed, _ = step.communicate(timeout=120)
    assert "NODE_FAIL" in printed
    slurm.start_node()
    (root / "go").write_text("")
    again = started(root)
    printed, _ = again.communicate(timeout=120)
    assert "Slurm ended" not in printed
    assert sorted(path.name for path in (root / "half").iterdir()) == ["a", "b"] and (root / "dvc.lock").exists()
