"""The default store of a project that was moved, and an experiment that somebody deleted."""

from __future__ import annotations

import shutil
from pathlib import Path

import mlflow
import pytest

from paco_core.runtime.tracking import database, send_left_over
from paco_core.runtime.tracking.journal import RunJournal
from paco_core.runtime.tracking.store import ARTIFACTS_URI, STORE, artifact_location


def laid_out(root: Path, template: Path) -> mlflow.MlflowClient:
    """A project with a run that has a file."""
    root.mkdir()
    shutil.copy(template, root / STORE)
    client = mlflow.MlflowClient(f"sqlite:///{root / STORE}")
    experiment = client.create_experiment("paco/x", artifact_location=(root / "mlartifacts").as_uri())
    client.log_text(client.create_run(experiment).info.run_id, "kept", "a.txt")
    return client


def test_a_moved_project_keeps_its_files_below_its_own_folder(
    tmp_path: Path, mlflow_template: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ARTIFACTS_URI, raising=False)
    laid_out(tmp_path / "100%_old", mlflow_template)
    shutil.move(tmp_path / "100%_old", tmp_path / "new")
    client = database.connect(f"sqlite:///{tmp_path / 'new' / STORE}")
    experiment = client.get_experiment_by_name("paco/x")
    assert experiment.artifact_location == (tmp_path / "new/mlartifacts").as_uri()
    (run,) = client.search_runs([experiment.experiment_id])
    assert Path(client.download_artifacts(run.info.run_id, "a.txt", str(tmp_path))).read_text() == "kept"
    client.log_text(client.create_run(experiment.experiment_id).info.run_id, "more", "b.txt")
    assert not (tmp_path / "100%_old").exists(), "the old folder is not created again"
    assert "moved or copied" in capsys.readouterr().err
    database.prepare(f"sqlite:///{tmp_path / 'new' / STORE}")
    assert capsys.readouterr().err == "", "once"


@pytest.mark.parametrize("how", ["moved", "only the store was moved", "copied"])
def test_files_that_did_not_come_along_are_reported_and_nothing_is_written_there(
    tmp_path: Path, mlflow_template: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.delenv(ARTIFACTS_URI, raising=False)
    old, new = tmp_path / "old", tmp_path / "new"
    laid_out(old, mlflow_template)
    new.mkdir()
    (new / "dvc.yaml").touch()
    (shutil.copy if how == "copied" else shutil.move)(old / STORE, new / STORE)
    if how == "moved":
        shutil.rmtree(old)
    before = sorted(old.rglob("*"))
    client = database.connect(f"sqlite:///{new / STORE}")
    said = capsys.readouterr().err
    assert "missing" in said and str(old / "mlartifacts") in said and ("cp -a" in said) is (how != "moved")
    experiment = client.get_experiment_by_name("paco/x")
    run = client.create_run(experiment.experiment_id).info.run_id
    client.log_text(run, "more", "b.txt")
    assert [path.read_text() for path in new.glob(f"mlartifacts/**/{run}/**/*.txt")] == ["more"]
    assert sorted(old.rglob("*")) == before


def test_a_store_that_projects_share_is_left_alone(
    tmp_path: Path, mlflow_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ARTIFACTS_URI, raising=False)
    client = laid_out(tmp_path / "a", mlflow_template)
    (tmp_path / "shared").mkdir()
    bucket = "s3://bucket/mlartifacts"
    client.create_experiment("bucket", artifact_location=bucket)
    shutil.move(tmp_path / "a" / STORE, tmp_path / "shared" / STORE)
    client = database.connect(f"sqlite:///{tmp_path / 'shared' / STORE}")
    found = {e.name: e.artifact_location for e in client.search_experiments()}
    assert (found["paco/x"], found["bucket"]) == ((tmp_path / "a/mlartifacts").as_uri(), bucket)


def test_metrics_that_wait_in_a_moved_project_go_to_its_own_store(
    tmp_path: Path, mlflow_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (ARTIFACTS_URI, "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
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
    client = mlflow.MlflowClient(f"sqlite:///{new / STORE}")
    experiment = client.get_experiment_by_name("paco/x")
    assert experiment is not None and experiment.artifact_location == (new / "mlartifacts").as_uri()
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.metrics == {"loss": 0.5} and not old.exists()


def test_a_destination_that_was_chosen_stays(
    tmp_path: Path, mlflow_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    laid_out(tmp_path / "old", mlflow_template)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    monkeypatch.setenv(ARTIFACTS_URI, (tmp_path / "old/mlartifacts").as_uri())
    client = database.connect(f"sqlite:///{tmp_path / 'new' / STORE}")
    assert client.get_experiment_by_name("paco/x").artifact_location == (tmp_path / "old/mlartifacts").as_uri()
