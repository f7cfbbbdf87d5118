"""The commands of README.md, the tutorial and the how-to pages, run in a project that has run.

Blocks that another test runs, or none, say so on the line above (`tests/contract/project/test_doc_commands.py`). The
others run here, page by page, in a copy of the smoke project, where every stage is up to date.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY
from tests.support.doc_commands import SHELL, blocks, pages_of

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]
TO_RUN = [
    page
    for page in pages_of(REPOSITORY, "tutorial", "how-to")
    if any(block.language in SHELL and block.mark is None for block in blocks(REPOSITORY, page))
]
TO_RUN.sort(
    key=lambda page: page.endswith("custom-reward.md")
)  # last: it trains, and leaves what reads the policy out of date


def of_running_processes(folder: str, names: list[str]) -> set[str]:
    """What senders and servers of the smoke project may be writing at this moment."""
    if Path(folder).name == ".paco":
        return {"sender.log", "serving", "tracking"} & set(names)
    return {name for name in names if name.startswith("mlflow.db")}


@pytest.fixture(scope="module")
def project(smoke: Path, mlflow_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the smoke project whose run is committed, as the pages ask for."""
    root = tmp_path_factory.mktemp("documented") / "paco"
    shutil.copytree(smoke, root, symlinks=True, ignore=of_running_processes)
    shutil.copy(mlflow_template, root / "mlflow.db")
    # Its .env names the instance of the original.
    subprocess.run([sys.executable, "-m", "paco_pipelines.instance.settings"], cwd=root, check=True)
    for command in (["add", "-A"], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "Run"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


@pytest.mark.parametrize("page", TO_RUN)
def test_the_commands_of_a_page_work(page: str, project: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    author = {f"GIT_{role}_{field}": "t@t" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")}
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(project), **author}
    for block in blocks(REPOSITORY, page):
        if block.title:
            (project / block.title).write_text("\n".join(block.lines) + "\n")
        elif block.language in SHELL and block.mark is None:
            result = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.script],
                cwd=project, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            assert result.returncode == 0, f"{block.place}:\n{result.stdout[-2000:]}\n{result.stderr[-2000:]}"
