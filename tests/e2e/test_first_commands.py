"""First commands of a Dagster user in a new project: no environment variable is set, and no other process runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paco_pipelines.instance import settings
from tests.support.project_copy import copy_project

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """A project after `make setup`."""
    root = tmp_path_factory.mktemp("fresh") / "my project"
    root.mkdir()
    copy_project(repository, root)
    settings.name_home(root)
    settings.write_settings(root, root / ".dagster")
    return root


def clean(root: Path) -> dict[str, str]:
    """An environment that holds as little as possible."""
    return {"PATH": f"{BIN}{os.pathsep}/usr/bin{os.pathsep}/bin", "HOME": str(root.parent), "PYTHONPATH": str(root)}


def test_env_keeps_what_the_user_wrote_and_follows_a_moved_project(tmp_path: Path) -> None:
    project, moved = tmp_path / "one", tmp_path / "two"
    project.mkdir()
    (project / ".env").write_text("TOKEN=abc\n")
    settings.name_home(project)
    settings.name_home(project)
    assert (project / ".env").read_text() == f'TOKEN=abc\nDAGSTER_HOME="${{DAGSTER_HOME:-{project}/.dagster}}"\n'
    project.rename(moved)
    settings.name_home(moved)
    assert (moved / ".env").read_text() == f'TOKEN=abc\nDAGSTER_HOME="${{DAGSTER_HOME:-{moved}/.dagster}}"\n'
    (moved / ".env").write_text("export DAGSTER_HOME=/elsewhere\n")
    settings.name_home(moved)
    assert (moved / ".env").read_text() == "export DAGSTER_HOME=/elsewhere\n"


def test_a_copy_of_a_project_does_not_run_in_the_instance_of_the_original(fresh: Path, tmp_path: Path) -> None:
    root = tmp_path / "copy"
    copy_project(fresh, root)
    (root / ".env").write_text((fresh / ".env").read_text())
    command = ["dagster", "definitions", "validate"]
    result = subprocess.run(command, cwd=root, env=clean(root), capture_output=True, text=True)
    assert result.returncode != 0 and str(fresh / ".dagster") in result.stdout + result.stderr
    subprocess.run([sys.executable, "-m", "paco_pipelines.instance.settings"], cwd=root, check=True)
    assert subprocess.run(command, cwd=root, env=clean(root), capture_output=True).returncode == 0


def test_the_command_of_another_checkout_is_refused(fresh: Path) -> None:
    """As in a git worktree, where the environment of the first checkout is active."""
    command = [str(BIN / "paco"), "graph"]
    env = {key: value for key, value in clean(fresh).items() if key != "PYTHONPATH"}
    result = subprocess.run(command, cwd=fresh, env=env, capture_output=True, text=True)
    assert result.returncode == 1 and str(fresh) in result.stderr and "make setup" in result.stderr
    graph_result = subprocess.run([sys.executable, "-m", "paco_core", "graph"], cwd=fresh, env=env, capture_output=True)
    assert graph_result.returncode == 0
