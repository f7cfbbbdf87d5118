"""Shared by all tests: quiet, single-threaded, offline, and with an MLflow store that is ready to copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

# The same examples in each run, and none fails because the machine was busy.
hypothesis.settings.register_profile("paco", deadline=None, derandomize=True)
hypothesis.settings.load_profile("paco")
os.environ.update(
    OMP_NUM_THREADS="1",
    OMP_WAIT_POLICY="passive",
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    MLFLOW_DISABLE_TELEMETRY="true",
    DO_NOT_TRACK="1",
)
REPOSITORY = Path(__file__).resolve().parent.parent


class WholeFiles(LoadScopeScheduling):
    """Tests of a file stay in one process, and all that share the smoke run.

    The group markers of pytest-xdist 3.8 do nothing under pytest 9.2, whose ids cannot be rewritten.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        return "e2e" if file.startswith("tests/e2e/") else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> WholeFiles:
    return WholeFiles(config, log)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Stages set torch's threads for their process; the sums of the next test must not depend on that."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The project's own root; read it, never write below it."""
    return REPOSITORY


@pytest.fixture(scope="session")
def mlflow_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty SQLite store: MLflow needs seconds to make one."""
    store = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    code = f"import mlflow; mlflow.MlflowClient('sqlite:///{store}').search_experiments()"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return store


@pytest.fixture
def project(tmp_path: Path, mlflow_template: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project root of its own: the real params.yaml and profiles, an MLflow store, no data."""
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    shutil.copytree(REPOSITORY / "profiles", tmp_path / "profiles")
    shutil.copy(mlflow_template, tmp_path / "mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path
