"""DVC's md5 of files and folders, without DVC.

A folder's md5 is that of the JSON list of its files' md5s and relative paths, with ``.dir`` behind it;
the list itself lies in DVC's cache under that md5.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pathspec import PathSpec

from dvc_project.md5s import Md5s
from dvc_project.repository import DVC_FOLDER, local_path, repository_of

IGNORE_FILE = ".dvcignore"
_ALWAYS = (".git", ".hg/", f"{DVC_FOLDER}/")


def hash_json(value: Any) -> str:
    """A short digest of JSON-like data, independent of the order of keys."""
    return hashlib.md5(json.dumps(value, sort_keys=True, default=str).encode(), usedforsecurity=False).hexdigest()


def listing_md5(files: Mapping[str, str]) -> str:
    """The md5 of a folder that holds these files (relative path -> md5)."""
    entries = [{"md5": files[name], "relpath": name} for name in sorted(files)]
    return hashlib.md5(json.dumps(entries, sort_keys=True).encode(), usedforsecurity=False).hexdigest() + ".dir"


class Workspace:
    """Files of a DVC project as DVC sees them: what ``.dvcignore`` files hide is not there.

    Args:
        root: the folder of ``dvc.yaml``; paths are relative to it.
        md5s: those of the repository by default, remembered across processes; ``Md5s()`` reads all bytes again.
        use_dvcignore: whether ``.dvcignore`` counts; without, every file does.
    """

    def __init__(self, root: Path, md5s: Md5s | None = None, use_dvcignore: bool = True) -> None:
        self.root, repository = root, repository_of(root)
        self._ignored = Ignored(repository if use_dvcignore else None)
        self._md5s = md5s or Md5s.of_repository(repository)

    def md5(self, path: str) -> str | None:
        """The md5 that DVC gives a project-relative file or folder, None when there is nothing."""
        place = local_path(self.root, path)
        if place is None:
            return None
        try:
            if (self.root / place).is_dir():
                return listing_md5(self.listing(place))
            return self._md5s(os.path.normpath(self.root / place))
        except (FileNotFoundError, NotADirectoryError):  # removed meanwhile by a stage that runs
            return None
        finally:
            self._md5s.save()

    def reaches(self, path: str) -> bool:
        """Whether a path lies on this machine: only DVC can ask about URLs."""
        return local_path(self.root, path) is not None

    def listing(self, path: str) -> dict[str, str]:
        """Relative path -> md5 of every file of a folder."""
        base = os.path.normpath(self.root / path)
        return {name: self._md5s(f"{base}/{name}") for name in sorted(self.files(path))}

    def size(self, path: str) -> int:
        """Bytes of a file, or of all files of a folder."""
        full = self.root / path
        return sum((full / f).stat().st_size for f in self.files(path)) if full.is_dir() else full.stat().st_size

    def is_hidden(self, path: str) -> bool:
        """Whether a ``.dvcignore`` hides a file or folder."""
        full = self.root / path
        return self._ignored.hides(os.path.normpath(full), full.is_dir())

    def files(self, path: str) -> Iterator[str]:
        """Paths of all files below a folder, relative to it."""
        base = os.path.normpath(self.root / path)
        if self._ignored.hides(base, is_folder=True):
            return
        for parent, folders, names in os.walk(base):
            folders[:] = [name for name in folders if not self._ignored(parent, name, is_folder=True)]
            inside = "" if parent == base else f"{parent[len(base) + 1 :]}/"
            for name in names:
                if not self._ignored(parent, name, is_folder=False):
                    yield f"{inside}{name}"


class Ignored:
    """What ``.dvcignore`` files hide: the repository's at its top, and one in any folder below it.

    Nothing is hidden without a repository. Files are read when a folder is first asked about.
    """

    def __init__(self, repository: Path | None) -> None:
        self.repository = None if repository is None else str(repository)
        self._patterns: dict[str, tuple[tuple[str, PathSpec[Any]], ...]] = {}

    def __call__(self, folder: str, name: str, is_folder: bool) -> bool:
        """Whether DVC passes over ``name`` in an absolute folder; what lies outside the repository it never does.

        The last line that fits counts, and those of a folder further down come after those above.
        """
        path = f"{folder}/{name}/" if is_folder else f"{folder}/{name}"
        for place, patterns in self._of(folder):
            is_ignored = patterns.check_file(path[len(place) + 1 :]).include
            if is_ignored is not None:
                return is_ignored
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
