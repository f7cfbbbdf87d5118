"""An experiment runs in a checkout that DVC throws away; what outlives it lies in the project that owns it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paco_core.io.project import owner_root
from paco_core.policies.encodings import cache_folder, encoder_fingerprint
from paco_core.runtime.tracking import tracking_uri
from paco_core.runtime.tracking.journal import FOLDER, RunJournal, journals
from paco_core.runtime.tracking.store import artifact_location
from paco_core.serving.servers.registry import Registry


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DVC_ROOT", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / ".dvc/tmp/exps/standalone/tmpab"
    folder.mkdir(parents=True)
    return folder


def test_a_checkout_belongs_to_the_project_that_holds_it(tmp_path: Path, checkout: Path) -> None:
    assert owner_root(checkout) == owner_root(checkout / "sub") == owner_root(checkout.parents[1] / "tmpcd") == tmp_path
    for cwd in (tmp_path, tmp_path / ".dvc/tmp", tmp_path / ".paco/audit/prompts", tmp_path / "elsewhere"):
        assert owner_root(cwd) == cwd


def test_dvc_names_the_owner_where_its_folder_lies_on_another_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch, project = tmp_path / "scratch", tmp_path / "project"
    (scratch / "exps/tmpab").mkdir(parents=True)
    (project / ".dvc").mkdir(parents=True)
    (project / ".dvc/tmp").symlink_to(scratch)
    monkeypatch.setenv("DVC_ROOT", str(project))
    assert owner_root(scratch / "exps/tmpab") == owner_root(project / ".dvc/tmp/exps/tmpab") == project
    assert owner_root(tmp_path / "other") == tmp_path / "other", "a root of its own inside a stage"


def test_everything_that_outlives_a_run_is_found_in_the_owner(
    tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tracking_uri(checkout) == tracking_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    assert artifact_location(checkout) == artifact_location(tmp_path)
    assert Registry(checkout).folder == Registry(tmp_path).folder == tmp_path / ".paco/serving"
    assert cache_folder(checkout) == cache_folder(tmp_path) == tmp_path / ".paco/encodings"
    journal = RunJournal.begin(checkout, {"kind": "run"})
    assert [entry.home for entry in journals(tmp_path)] == [journal.home] and journal.home.parent == tmp_path / FOLDER
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///stores/a.db")
    monkeypatch.chdir(checkout)
    assert tracking_uri(checkout) == f"sqlite:///{tmp_path}/stores/a.db", "a relative file lies below the project"
    for absolute in (f"sqlite:///{tmp_path}/b.db", "sqlite://", "sqlite:///:memory:", "postgresql://host/db"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", absolute)
        assert tracking_uri(checkout) == absolute


def test_encodings_are_known_again_by_a_model_that_was_checked_out_anew(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name / "encoder").mkdir(parents=True)
        (tmp_path / name / "encoder/weights").write_bytes(b"weights")
    os.utime(tmp_path / "second/encoder/weights", (1, 1))
    expected = encoder_fingerprint(tmp_path / "first", "float32", "cpu")
    assert encoder_fingerprint(tmp_path / "second", "float32", "cpu") == expected
    (tmp_path / "second/encoder/weights").write_bytes(b"WEIGHTS")
    assert encoder_fingerprint(tmp_path / "second", "float32", "cpu") != expected
