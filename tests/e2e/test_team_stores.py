"""The stores of a team: DVC's remote and MLflow's artifacts on S3, MLflow and Dagster on PostgreSQL."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import mlflow
import pytest

import dvc_graphs as graphs
from paco_core.runtime.tracking import send_left_over, sender
from paco_core.runtime.tracking.sender import start
from paco_pipelines.instance.settings import DATABASE, write_settings
from tests.e2e.conftest import run_dvc
from tests.support import bucket as buckets
from tests.support import postgres_server
from tests.support.bucket import Bucket
from tests.support.postgres_server import Postgres
from tests.support.waiting import until

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]
needs_postgres = pytest.mark.skipif(postgres_server.missing() is not None, reason=str(postgres_server.missing()))


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    with buckets.bucket() as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        yield bucket


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with postgres_server.postgres() as server:
        yield server


# --- DVC's remote -----------------------------------------------------------------------------------------


def clone(origin: Path, target: Path) -> Path:
    subprocess.run(["git", "clone", "-q", str(origin), str(target)], check=True)
    assert run_dvc(target, "remote", "add", "--local", "-d", "team", "s3://paco/dvc").returncode == 0
    return target


def test_what_one_clone_pushes_another_pulls_and_verifies(smoke: Path, tmp_path: Path, bucket: Bucket) -> None:
    first = clone(smoke, tmp_path / "first")
    for name in ("dvc.lock", "params.yaml", "data/metrics", "data/runs"):  # what a person commits after a run
        if (smoke / name).is_dir():
            shutil.copytree(smoke / name, first / name, dirs_exist_ok=True)
        else:
            shutil.copy(smoke / name, first / name)
    for words in (["add", "-A"], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "a run"]):
        subprocess.run(["git", *words], cwd=first, check=True)
    run_dvc(first, "cache", "dir", "--local", str(smoke / ".dvc" / "cache"))
    pushed = run_dvc(first, "push")
    assert pushed.returncode == 0, pushed.stderr[-3000:]
    assert len(bucket.keys("dvc/")) > 50
    second = clone(first, tmp_path / "second")
    pulled = run_dvc(second, "pull")
    assert pulled.returncode == 0, pulled.stderr[-3000:]
    paco = [sys.executable, "-m", "paco_core", "provenance", "--verify", "data/policies/flux_t2is"]
    verified = subprocess.run(paco, cwd=second, capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout[-3000:] + verified.stderr[-3000:]
    (damaged,) = sorted((second / "data/rankings").glob("*.parquet"))[:1]
    damaged.chmod(0o644)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert subprocess.run(paco, cwd=second, capture_output=True).returncode != 0


# --- MLflow -----------------------------------------------------------------------------------------------


@pytest.fixture
def team(project: Path, postgres: Postgres, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty MLflow database, whose artifacts lie in the bucket; it is the one in use."""
    url = postgres.create_new("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
    monkeypatch.setenv("MLFLOW_ARTIFACTS_DESTINATION", "s3://paco/mlflow")
    monkeypatch.setattr(sender, "start", start)
    return url


@needs_postgres
def test_two_people_start_at_once_on_an_empty_database(team: str, project: Path) -> None:
    code = """
import sys
from pathlib import Path
from paco_core.runtime.tracking import open_run
with open_run(Path(sys.argv[1]), "paco/team", sys.argv[2], {}) as tracker:
    for step in range(50):
        tracker.metrics({"loss": step / 3}, step)
"""
    people = []
    for name in ("anna", "berta"):
        shutil.copytree(project, project.parent / name, ignore=shutil.ignore_patterns("anna", "berta"))
        root = project.parent / name
        people.append((root, subprocess.Popen([sys.executable, "-c", code, str(root), name], cwd=root)))
    assert [process.wait(300) for _, process in people] == [0, 0]
    for root, _ in people:
        until(lambda root=root: send_left_over(root).waiting == 0, seconds=120)
    client = mlflow.MlflowClient(team)
    (experiment,) = [
        experiment_info for experiment_info in client.search_experiments() if experiment_info.name == "paco/team"
    ]
    runs = client.search_runs([experiment.experiment_id])
    assert sorted(run.info.run_name for run in runs) == ["anna", "berta"]
    for run in runs:
        assert len(client.get_metric_history(run.info.run_id, "loss")) == 50


# --- Dagster ----------------------------------------------------------------------------------------------

STEP = """
import sys
import dagster as dg
from pathlib import Path
sys.path.append({here!r})
import dvc_graphs as graphs
defs = graphs.definitions(Path({root!r}))
with dg.DagsterInstance.get() as instance:
    done = dg.materialize(list(defs.assets), resources=defs.resources, instance=instance, raise_on_error=False)
sys.exit(not done.success)
"""
WAITS = """
stages:
  a:
    cmd: python stage.py
    deps: [stage.py]
    outs: [a.out]
"""
STAGE = """
import pathlib, time
pathlib.Path("begun").write_text("")
while pathlib.Path("wait").exists():
    time.sleep(0.05)
pathlib.Path("a.out").write_text("made")
"""


def step(root: Path, home: Path) -> subprocess.Popen[bytes]:
    """Materialise the graph of ``root`` in the instance of ``home``."""
    code = STEP.format(here=graphs.FOLDER, root=str(root))
    log = (root / "step.log").open("ab")
    return subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "DAGSTER_HOME": str(home)}, stdout=log, stderr=log
    )


@needs_postgres
def test_dagster_keeps_what_it_knows_in_the_database(
    postgres: Postgres, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.create_new("dagster").replace("postgresql://", "postgresql+psycopg2://")
    monkeypatch.setenv(DATABASE, url)
    homes = [tmp_path / "home1", tmp_path / "home2"]
    for home in homes:
        write_settings(repository, home)
        assert postgres_server.PASSWORD not in (home / "dagster.yaml").read_text()
    roots = [graphs.make(tmp_path / name, WAITS, stage__py=STAGE) for name in ("one", "two")]
    processes = [step(root, home) for root, home in zip(roots, homes, strict=True)]
    assert [process.wait(200) for process in processes] == [0, 0], [(root / "step.log").read_text() for root in roots]
    with dg.DagsterInstance.from_config(str(homes[0])) as instance:
        runs = instance.get_runs()
        assert [run.status for run in runs] == [dg.DagsterRunStatus.SUCCESS] * 2
        records = instance.fetch_materializations(dg.AssetKey("a"), limit=10).records
        assert len(records) == 2, "either home reads what both wrote"
    # the database dies while a stage runs
    (roots[0] / "stage.py").write_text(STAGE + "# changed")
    (roots[0] / "wait").write_text("")
    (roots[0] / "begun").unlink()
    broken = step(roots[0], homes[0])
    until((roots[0] / "begun").exists, seconds=120)
    postgres.kill()
    (roots[0] / "wait").unlink()
    assert broken.wait(200) != 0, "a step that cannot record its end does not succeed"
    postgres.start()
    assert step(roots[0], homes[0]).wait(200) == 0, (roots[0] / "step.log").read_text()[-3000:]
    with dg.DagsterInstance.from_config(str(homes[1])) as instance:
        assert len(instance.fetch_materializations(dg.AssetKey("a"), limit=10).records) == 3
    assert run_dvc(roots[0], "status", "-q").returncode == 0
