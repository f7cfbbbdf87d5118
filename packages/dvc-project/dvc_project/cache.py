"""Versions in DVC's cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from dvc_project.errors import DvcProjectError
from dvc_project.hashing import listing_md5
from dvc_project.md5s import Md5s
from dvc_project.repository import DVC_FOLDER, repository_of, settings


class Cache:
    """The cache of a project: DVC 3's objects, and DVC 2's beside them."""

    def __init__(self, root: Path) -> None:
        repository = repository_of(root)
        self.folder = Path(settings(root).get("cache", "dir", fallback=str(repository / DVC_FOLDER / "cache")))
        self._md5s = Md5s.of_repository(repository)

    def path(self, md5: str) -> Path:
        """Where an object lies, or would."""
        legacy = self.folder / md5[:2] / md5[2:]
        place = self.folder / "files" / "md5" / md5[:2] / md5[2:]
        return legacy if not place.is_file() and legacy.is_file() else place

    def listing(self, md5: str) -> dict[str, str] | None:
        """Relative path -> md5 of the files of a recorded folder, None when the cache does not know it.

        Raises:
            DvcProjectError: when the object is no list of files.
        """
        path = self.path(md5)
        if not path.is_file():
            return None
        try:
            return {str(e["relpath"]): str(e["md5"]) for e in json.loads(path.read_text(encoding="utf-8"))}
        except (ValueError, TypeError, KeyError):
            raise DvcProjectError(f"{path}: damaged: not a list of files; `dvc fetch` gets it again") from None

    def missing(self, files: Mapping[str, str]) -> list[str]:
        """Those of some files (name -> md5) that the cache lacks."""
        return [name for name, md5 in files.items() if not self.path(md5).is_file()]

    def damaged(self, md5: str) -> bool:
        """Whether an object's bytes are not those of its name: links lead to them, and can be written through."""
        if md5.endswith(".dir"):
            return listing_md5(self.listing(md5) or {}) != md5
        path = str(self.path(md5))
        try:
            return self._md5s(path) != md5
        finally:
            self._md5s.save()
