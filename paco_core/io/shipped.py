"""Files that paco ships: those of a new project, configurations of launchers, the versions that were tried together.

``pip install -r "$(python -m paco_core.io.shipped)"`` installs these versions.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

LIBRARY = Path(__file__).parents[1]
NEW_PROJECT = LIBRARY / "new_project"  # a clone contains only the files that it does not use itself
IN_WHEEL = (LIBRARY / "locks").is_dir()
RUN_LOCK = (LIBRARY if IN_WHEEL else LIBRARY.parent) / "locks" / "run.txt"


def shipped_file(root: Path, name: str) -> Path:
    """A file of the project, for example ``launch/slurm.yaml``; paco's file if the project has none of this name."""
    return LIBRARY / name if not (root / name).exists() and (LIBRARY / name).is_file() else root / name


def new_project_files() -> dict[str, Path]:
    """The files of a new project by their paths in it.

    ``gitignore`` has no dot: the packaging of this library would read the file itself.
    """
    files = dict(_files_below(NEW_PROJECT))
    if not IN_WHEEL:
        pyproject = tomllib.loads((LIBRARY.parent / "pyproject.toml").read_text(encoding="utf-8"))
        for source, target in pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"].items():
            if (LIBRARY.parent / target).is_relative_to(NEW_PROJECT):
                place = (LIBRARY.parent / target).relative_to(NEW_PROJECT)
                files |= {(place / name).as_posix(): file for name, file in _files_below(LIBRARY.parent / source)}
    files[".gitignore"] = files.pop("gitignore")
    return dict(sorted(files.items()))


def _files_below(place: Path) -> Iterator[tuple[str, Path]]:
    """Files with their paths relative to a folder; a file itself with the path ""."""
    if place.is_file():
        yield "", place
    for file in place.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            yield file.relative_to(place).as_posix(), file


if __name__ == "__main__":
    print(RUN_LOCK)
