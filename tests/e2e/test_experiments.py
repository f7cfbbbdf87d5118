"""`dvc exp run` in all its ways, through the real DVC: each run is tracked in the project, under its experiment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import psutil
import pytest

from paco_core.experiments.comparison import compare_runs
from paco_core.runtime.tracking import count_journals
from tests.support import REPOSITORY
from tests.support.waiting import until

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(400)]
GRAPH = """
stages:
  prompts:
    cmd: python -m paco_core run prompts
    params: [prompts]
    outs: [data/prompts]
    metrics: [data/metrics/prompts.json: {cache: false}]
"""


@pytest.fixture
def world(project: Path, repository: Path) -> Iterator[Path]:
    """A DVC project of one light stage, committed to git."""
    (project / "dvc.yaml").write_text(GRAPH)
    (project / ".gitignore").write_text("/mlflow.db*\n/mlartifacts/\n/.paco/\n/data/\n")
    run(project, "git", "init", "-q")
    run(project, "dvc", "init", "-q")
    run(project, "git", "add", "-A")
    run(project, "git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "t")
    yield project
    subprocess.run(["dvc", "queue", "stop", "--kill"], cwd=project, env=environment(), capture_output=True)
    until(lambda: not workers(project), 120)


def environment() -> dict[str, str]:
    code = REPOSITORY
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(code), "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false"}


def run(project: Path, *command: str) -> str:
    result = subprocess.run(command, cwd=project, env=environment(), capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


def workers(project: Path) -> list[str]:
    """Processes of DVC's queue that work for a project."""
    commands = (" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))
    return [line for line in commands if "dvc" in line and str(project) in line]


def runs(project: Path) -> list[Any]:
    client = mlflow.MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    return list(client.search_runs([e.experiment_id for e in client.search_experiments()]))


def test_experiments_in_the_workspace_aside_and_queued_are_tracked_and_compared(world: Path) -> None:
    run(world, "dvc", "exp", "run", "-n", "here", "-S", "prompts.seed=1")
    run(world, "git", "checkout", "-q", "--", ".")
    run(world, "dvc", "exp", "run", "--temp", "-n", "aside", "-S", "prompts.seed=2")
    for seed in (3, 4):
        run(world, "dvc", "exp", "run", "--queue", "-n", f"queued-{seed}", "-S", f"prompts.seed={seed}")
    run(world, "dvc", "exp", "run", "--run-all", "--jobs", "2")
    seeds = {"here": "1", "aside": "2", "queued-3": "3", "queued-4": "4"}
    until(lambda: len(runs(world)) == len(seeds) and not count_journals(world), 200)

    runs_by_experiment = {mlflow_run.data.tags["dvc.experiment"]: mlflow_run for mlflow_run in runs(world)}
    assert {name: mlflow_run.data.params["prompts.seed"] for name, mlflow_run in runs_by_experiment.items()} == seeds
    commit = run(world, "git", "rev-parse", "HEAD").strip()
    for mlflow_run in runs_by_experiment.values():
        tags = mlflow_run.data.tags
        assert mlflow_run.info.status == "FINISHED" and tags["dvc.stage"] == "prompts"
        assert tags["dvc.experiment.baseline"] == tags["mlflow.source.git.commit"] == tags["git.commit"] == commit
        assert tags["mlflow.user"] == mlflow_run.info.user_id and tags["mlflow.source.type"] == "LOCAL"
        assert tags["mlflow.source.name"] == "prompts"
    left = [path for path in (world / ".dvc/tmp/exps").rglob("*") if path.name in ("mlflow.db", ".paco")]
    assert not left, "no checkout has a store or a journal of its own"

    text = compare_runs(world, ["here", "aside", "queued-3", "queued-4"], world / "compared.html")
    (differs,) = [line.split() for line in text.splitlines() if line.startswith("prompts.seed")]
    assert differs == ["prompts.seed", "1", "2", "3", "4"]
    assert all(f"({name})" in text for name in seeds)
