"""A clone of this project at the smoke profile, in which the graph is run once for all tests here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.support.project_copy import smoke_project

Dvc = Callable[..., subprocess.CompletedProcess[str]]
TRACER = Path(__file__).parent / "traced"  # its sitecustomize records what stages read


@pytest.fixture(scope="session")
def smoke(repository: Path, mlflow_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project at the smoke profile after one whole `dvc repro`."""
    root = tmp_path_factory.mktemp("smoke") / "paco"
    smoke_project(repository, mlflow_template, root)
    traced = {"PACO_TRACED": str(root.parent / "traced"), "PYTHONPATH": os.pathsep.join([str(TRACER), str(root)])}
    result = run_dvc(root, "repro", environment=traced)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return root


def run_dvc(root: Path, *args: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The real dvc of this environment, as a person would call it in ``root``."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(root), **(environment or {})}
    return subprocess.run(["dvc", *args], cwd=root, env=env, capture_output=True, text=True)


def changed_stages(dvc: Dvc) -> set[str]:
    """What the real ``dvc status`` calls changed, after the stage ``code``, which is always asked anew, has run."""
    assert dvc("repro", "--single-item", "code").returncode == 0
    return set(json.loads(dvc("status", "--json").stdout)) - {"code"}


@pytest.fixture
def dvc(smoke: Path) -> Dvc:
    return lambda *args: run_dvc(smoke, *args)
