"""What ``.dvcignore`` files hide from DVC: the repository's at its top, and one in any folder below it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pathspec import PathSpec

from dvc_project.repository import DVC_FOLDER

IGNORE_FILE = ".dvcignore"
_ALWAYS = (".git", ".hg/", f"{DVC_FOLDER}/")


class Ignored:
    """The patterns of one repository, of none without one; files are read when a folder is first asked about."""

    def __init__(self, repository: Path | None) -> None:
        self.repository = None if repository is None else str(repository)
        self._patterns: dict[str, tuple[tuple[str, PathSpec[Any]], ...]] = {}

    def __call__(self, folder: str, name: str, is_folder: bool) -> bool:
        """Whether DVC passes over ``name`` in an absolute folder; what lies outside the repository it never does.

        The last line that fits counts, and those of a folder further down come after those above.
        """
        path = f"{folder}/{name}/" if is_folder else f"{folder}/{name}"
        for place, patterns in self._of(folder):
            found = patterns.check_file(path[len(place) + 1 :]).include
            if found is not None:
                return found
        return is_folder and self._is_inside(folder) and os.path.isdir(f"{path}{DVC_FOLDER}")  # another repository

    def hides(self, path: str, is_folder: bool) -> bool:
        """Whether an absolute path is passed over, for its own sake or for a folder that holds it."""
        if self.repository is None:
            return False
        inside = os.path.relpath(path, self.repository).split(os.sep)
        if inside[0] in (os.pardir, os.curdir):
            return False
        folder = self.repository
        for part in inside[:-1]:
            if self(folder, part, is_folder=True):
                return True
            folder = f"{folder}/{part}"
        return self(folder, inside[-1], is_folder)

    def _is_inside(self, folder: str) -> bool:
        return self.repository is not None and f"{folder}/".startswith(f"{self.repository}/")

    def _of(self, folder: str) -> tuple[tuple[str, PathSpec[Any]], ...]:
        """The patterns that count in a folder, the nearest first."""
        if not self._is_inside(folder):
            return ()
        if folder not in self._patterns:
            is_top = folder == self.repository
            above = () if is_top else self._of(os.path.dirname(folder))
            lines = [*(_ALWAYS if is_top else ()), *_lines(f"{folder}/{IGNORE_FILE}")]
            self._patterns[folder] = ((folder, PathSpec.from_lines("gitwildmatch", lines)), *above) if lines else above
        return self._patterns[folder]


def _lines(file: str) -> list[str]:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
