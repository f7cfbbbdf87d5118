"""``paco init``: a new project, with the graph, its parameters, the small models and Dagster's code location."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from paco_core.config.params import PARAMS_FILE
from paco_core.config.profiles import BASE
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError
from paco_core.io.shipped import RUN_LOCK, new_project_files
from paco_core.io.targets import checked

NEXT = """laid out {count} files in {folder}
next:
  cd {place}
  pip install -r {lock}   # versions that were tried together
  pip install 'paco-rl[pipeline]'
  git add . && git commit -m "New project"   # `dvc exp run` needs a first commit
  make demo                                  # the complete graph with small models; `make ui` shows it"""


def init(folder: Path) -> str:
    """Create a project in a new or empty folder, and return the next steps.

    Raises:
        DataError: if the folder is not empty or cannot be created; nothing is written then.
        OSError: if the disk is full, for example; written files are removed again.
    """
    checked(folder, "empty folder")
    if not folder.exists():
        with atomic(folder) as part:
            part.mkdir()
            files = _lay_out(part)
    else:  # keep the folder: it may be a shell's working directory or a mount point
        try:
            files = _lay_out(folder)
        except BaseException:
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            raise
    _name_dagsters_home(folder)
    place = shlex.quote(f"{folder}" if not f"{folder}".startswith("-") else f"./{folder}")
    return NEXT.format(count=files, folder=folder, place=place, lock=RUN_LOCK)


def _lay_out(folder: Path) -> int:
    """Copy all files to an empty folder, and create a git repository. Returns the number of files."""
    files = 0
    for name, source in _files().items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, place)
        files += 1
    if shutil.which("git") and not _in_git(folder):
        result = subprocess.run(["git", "init", "--quiet"], cwd=folder, capture_output=True, text=True)
        if result.returncode:
            raise DataError(f"`git init` failed, so that no project was laid out: {result.stderr.strip()}")
    return files


def _name_dagsters_home(folder: Path) -> None:
    """Write ``.env`` and Dagster's settings, which ``dagster schedule start`` needs before a first run.

    They are not copied, because ``.env`` contains the path of the project. If Dagster is not installed yet, the
    project's Makefile writes them later.
    """
    if find_spec("dagster") is None:
        return
    result = subprocess.run(
        [sys.executable, "-m", "paco_pipelines.instance.settings"], cwd=folder, capture_output=True, text=True
    )
    if result.returncode:
        raise DataError(f"{folder}: laid out, but Dagster's settings were not written: {result.stderr.strip()[-500:]}")


def _files() -> dict[str, Path]:
    """Each file by its path in the project.

    ``params.yaml`` is the storybook profile. If a clone uses another profile, the storybook profile is in
    ``profiles/storybook.yaml``, also in a wheel that was built from this clone.
    """
    files = new_project_files()
    if storybook := files.pop(f"profiles/{BASE}.yaml", None):
        files[PARAMS_FILE] = storybook
    return files


def _in_git(folder: Path) -> bool:
    result = subprocess.run(["git", "rev-parse", "--is-inside-work-tree"], cwd=folder, capture_output=True)
    return result.returncode == 0
