"""The default store of a project that was moved or copied."""

from __future__ import annotations

import shutil
from pathlib import Path

import mlflow
import pytest

from paco_core.runtime.tracking import database, send_left_over
from paco_core.runtime.tracking.journal import RunJournal
from paco_core.runtime.tracking.store import ARTIFACTS_URI, STORE, artifact_location
from tests.support.tracked import runs, store


@pytest.fixture(autouse=True)
def default_store(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (ARTIFACTS_URI, "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


def laid_out(root: Path, template: Path) -> mlflow.MlflowClient:
    """A project with a run that has a file."""
    root.mkdir()
    shutil.copy(template, root / STORE)
    client = store(root)
    experiment = client.create_experiment("paco/x", artifact_location=(root / "mlartifacts").as_uri())
    client.log_text(client.create_run(experiment, run_name="x").info.run_id, "kept", "a.txt")
    return client


def location(root: Path) -> str:
    """Where the experiment keeps its files, after paco has opened the store."""
    client = database.connect(f"sqlite:///{root / STORE}")
    return str(client.get_experiment_by_name("paco/x").artifact_location)


def log_more(root: Path) -> str:
    """Another run with a file; its id."""
    run = store(root).create_run(store(root).get_experiment_by_name("paco/x").experiment_id).info.run_id
    store(root).log_text(run, "more", "b.txt")
    return str(run)


def test_a_moved_project_keeps_its_files_below_its_own_folder(
    tmp_path: Path, mlflow_template: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "100%_old", tmp_path / "new"
    laid_out(old, mlflow_template)
    shutil.move(old, new)
    assert location(new) == (new / "mlartifacts").as_uri()
    run = runs(new)["x"].info.run_id
    assert Path(store(new).download_artifacts(run, "a.txt", str(tmp_path))).read_text() == "kept"
    log_more(new)
    assert not old.exists(), "the old folder is not created again"
    assert str(new / "mlartifacts") in capsys.readouterr().err
    database.prepare_store(f"sqlite:///{new / STORE}")
    assert capsys.readouterr().err == "", "once"


@pytest.mark.parametrize("change", ["moved", "copied"])
def test_files_that_did_not_come_along_are_reported_and_nothing_is_written_there(
    tmp_path: Path, mlflow_template: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    laid_out(old, mlflow_template)
    new.mkdir()
    (new / "dvc.yaml").touch()
    (shutil.copy if change == "copied" else shutil.move)(old / STORE, new / STORE)
    if change == "moved":
        shutil.rmtree(old)
    before = sorted(old.rglob("*"))
    assert location(new) == (new / "mlartifacts").as_uri()
    message = capsys.readouterr().err
    assert "missing" in message and str(old / "mlartifacts") in message and ("cp -a" in message) is (change != "moved")
    run = log_more(new)
    assert [path.read_text() for path in new.glob(f"mlartifacts/**/{run}/**/*.txt")] == ["more"]
    assert sorted(old.rglob("*")) == before


def test_a_store_that_projects_share_is_left_alone(
    tmp_path: Path, mlflow_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, bucket = laid_out(tmp_path / "a", mlflow_template), "s3://bucket/mlartifacts"
    client.create_experiment("bucket", artifact_location=bucket)
    (tmp_path / "shared").mkdir()
    shutil.move(tmp_path / "a" / STORE, tmp_path / "shared" / STORE)
    assert location(tmp_path / "shared") == (tmp_path / "a/mlartifacts").as_uri()
    assert store(tmp_path / "shared").get_experiment_by_name("bucket").artifact_location == bucket
    (tmp_path / "shared/dvc.yaml").touch()  # it is a project's own, whose destination was chosen
    monkeypatch.setenv(ARTIFACTS_URI, (tmp_path / "a/mlartifacts").as_uri())
    assert location(tmp_path / "shared") == (tmp_path / "a/mlartifacts").as_uri()


def test_metrics_that_wait_in_a_moved_project_go_to_its_own_store(tmp_path: Path, mlflow_template: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    header = {
        "kind": "run", "experiment": "paco/x", "name": "waits", "tags": {}, "uri": f"sqlite:///{old / STORE}",
        "artifacts": artifact_location(old),
    }  # fmt: skip
    journal = RunJournal.begin(old, header)
    journal.append({"kind": "metrics", "step": 0, "values": {"loss": 0.5}})
    journal.append({"kind": "end", "status": "FINISHED"})
    journal.close()
    shutil.move(old, new)
    shutil.copy(mlflow_template, new / STORE)
    assert send_left_over(new).waiting == 0
    assert runs(new)["waits"].data.metrics == {"loss": 0.5} and not old.exists()
    assert location(new) == (new / "mlartifacts").as_uri()
