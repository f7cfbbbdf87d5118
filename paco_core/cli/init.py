"""``paco init``: a new project, with the graph, its parameters, the small models and Dagster's code location."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

from paco_core.io.files import DataError

LIBRARY = Path(__file__).parents[1]
#: What only a new project has; the wheel holds all the rest beside it.
OWN = LIBRARY / "new_project"
#: Names under which the packaging of this library would read them itself.
RENAMED = {"gitignore": ".gitignore"}

NEXT = """laid out {count} files in {folder}
next:
  cd {folder}
  pip install -r requirements.txt     # versions that were tried together; skip it where they are installed
  pip install 'paco-rl[pipeline]'
  make demo                           # the whole graph, in small, on this machine; `make ui` shows it"""


def init(folder: Path) -> str:
    """Lay out a project in a new or empty folder, and print what to do next.

    Raises:
        DataError: when something lies in the folder already; nothing is written then.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} is not empty; name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    files = 0
    for source, name in sorted(_files()):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, place)
        files += 1
    if shutil.which("git") and not _in_git(folder):
        subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    return NEXT.format(count=files, folder=folder)


def _files() -> Iterator[tuple[Path, str]]:
    """Each file with its path in the project."""
    for file in _below(OWN):
        name = file.relative_to(OWN).as_posix()
        yield file, RENAMED.get(name, name)
    manifest = LIBRARY.parent / "pyproject.toml"
    if (OWN / "dvc.yaml").is_file() or not manifest.is_file():
        return  # an installed wheel: all of it lies there
    wheel = tomllib.loads(manifest.read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for source, target in wheel["force-include"].items():
        place = Path(target).relative_to(OWN.relative_to(LIBRARY.parent))
        for file in _below(LIBRARY.parent / source):
            yield file, (place / file.relative_to(LIBRARY.parent / source)).as_posix()


def _below(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
    else:
        yield from (one for one in place.rglob("*") if one.is_file() and "__pycache__" not in one.parts)


def _in_git(folder: Path) -> bool:
    asked = subprocess.run(["git", "rev-parse", "--is-inside-work-tree"], cwd=folder, capture_output=True)
    return asked.returncode == 0
