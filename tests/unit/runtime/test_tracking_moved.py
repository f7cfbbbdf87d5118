"""The default store of a project that was moved, and an experiment that somebody deleted."""

from __future__ import annotations

import shutil
from pathlib import Path

import mlflow
import pytest

from paco_core.runtime.tracking import database
from paco_core.runtime.tracking.store import ARTIFACTS_URI, STORE


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


def test_a_destination_that_was_chosen_stays(
    tmp_path: Path, mlflow_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    laid_out(tmp_path / "old", mlflow_template)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    monkeypatch.setenv(ARTIFACTS_URI, (tmp_path / "old/mlartifacts").as_uri())
    client = database.connect(f"sqlite:///{tmp_path / 'new' / STORE}")
    assert client.get_experiment_by_name("paco/x").artifact_location == (tmp_path / "old/mlartifacts").as_uri()
