"""A copy of this project as git would carry it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from paco_core.config import profiles
from paco_pipelines.instance import settings


def smoke_project(repository: Path, mlflow_template: Path, root: Path) -> None:
    """The project in a new folder ``root`` at the smoke profile, as `make demo PROFILE=smoke` prepares it."""
    root.mkdir()
    copy_project(repository, root)
    shutil.copy(mlflow_template, root / "mlflow.db")
    profiles.use(root, "smoke")
    settings.prepare(root)


def copy_project(repository: Path, target: Path) -> None:
    """The files that git would carry (committed or new), with a git repository of their own."""
    git_files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=repository, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, git_files.split("\0")):
        if (repository / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(repository / name, target / name)
    (target / "dvc.lock").unlink(missing_ok=True)
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "t"]):
        subprocess.run(["git", *command], cwd=target, check=True)
