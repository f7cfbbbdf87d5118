"""`paco params --migrate` names the files of a project that an earlier version laid out."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from paco_core.config import migration
from paco_core.io.shipped import new_project_files


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of this version."""
    monkeypatch.setattr(migration, "IN_WHEEL", True)
    for name, file in new_project_files().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, tmp_path / name)
    return tmp_path


def test_a_project_of_this_version_needs_no_replacement(project: Path) -> None:
    (project / "params.yaml").write_text("profile: mine\n")
    (project / "pipelines/my_assets.py").touch()
    assert list(migration.replacements(project)) == []


def test_the_printed_commands_bring_a_project_to_this_version(project: Path) -> None:
    (project / "dvc.yaml").write_text("stages: {}\n")
    (project / "pipelines/__init__.py").unlink()
    for name in ("launch", "pipelines/defs"):
        (project / name).mkdir()
    (project / "dagster.yaml").touch()
    lines = list(migration.replacements(project))
    commands = [line.strip() for line in lines if line.startswith("  ")]
    assert commands[0] == "rm -r dagster.yaml launch pipelines/defs" and len(commands) == 3
    for command in commands:
        subprocess.run(command, shell=True, cwd=project, check=True)
    assert list(migration.replacements(project)) == []
