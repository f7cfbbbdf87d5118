"""``paco init``: a new project, with the graph, its parameters, the small models and Dagster's code location."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from paco_core.config.params import PARAMS_FILE
from paco_core.config.profiles import BASE
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError
from paco_core.io.targets import checked

LIBRARY = Path(__file__).parents[1]
#: What only a new project has; the wheel holds all the rest beside it.
OWN = LIBRARY / "new_project"
#: Names under which the packaging of this library would read them itself.
RENAMED = {"gitignore": ".gitignore"}

NEXT = """laid out {count} files in {folder}
next:
  cd {place}
  pip install -r locks/run.txt        # versions that were tried together; skip it where they are installed
  pip install 'paco-rl[pipeline]'
  make demo                           # the whole graph, in small, on this machine; `make ui` shows it"""


def init(folder: Path) -> str:
    """Lay out a project in a new or empty folder, and print what to do next.

    Raises:
        DataError: when something lies in the folder already, or nothing can lie there; nothing is written then.
        OSError: when the disk is full, say; what was written is removed again.
    """
    checked(folder, "empty folder")
    if not folder.exists():
        with atomic(folder) as part:
            part.mkdir()
            files = _lay_out(part)
    else:  # the folder itself stays: a shell may stand in it, or a disk be mounted there
        try:
            files = _lay_out(folder)
        except BaseException:
            for one in folder.iterdir():
                shutil.rmtree(one) if one.is_dir() else one.unlink()
            raise
    _name_dagsters_home(folder)
    place = shlex.quote(f"{folder}" if not f"{folder}".startswith("-") else f"./{folder}")
    return NEXT.format(count=files, folder=folder, place=place)


def _lay_out(folder: Path) -> int:
    """Copy all files to an empty folder, and make it a repository; how many files there are."""
    files = 0
    for name, source in _files().items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, place)
        files += 1
    if shutil.which("git") and not _in_git(folder):
        made = subprocess.run(["git", "init", "--quiet"], cwd=folder, capture_output=True, text=True)
        if made.returncode:
            raise DataError(f"`git init` failed, so that no project was laid out: {made.stderr.strip()}")
    return files


def _name_dagsters_home(folder: Path) -> None:
    """Write what `dagster schedule start` and the like need before anything has run: ``.env`` and Dagster's settings.

    Not among what is copied: ``.env`` holds the path of the project.
    """
    made = subprocess.run(
        [sys.executable, "-m", "pipelines.instance.settings"], cwd=folder, capture_output=True, text=True
    )
    if made.returncode:
        raise DataError(f"{folder}: laid out, but Dagster's settings were not written: {made.stderr.strip()[-500:]}")


def _files() -> dict[str, Path]:
    """Each file by its path in the project.

    ``params.yaml`` is the storybook profile. A clone that uses another profile, and a wheel that was built there, have
    it as ``profiles/storybook.yaml``.
    """
    files = {name: file for file, name in _sources()}
    if storybook := files.pop(f"profiles/{BASE}.yaml", None):
        files[PARAMS_FILE] = storybook
    return dict(sorted(files.items()))


def _sources() -> Iterator[tuple[Path, str]]:
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
