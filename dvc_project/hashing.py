"""DVC's md5 of files and folders, without DVC.

A folder's md5 is that of the JSON list of its files' md5s and relative paths, with ``.dir`` behind it;
the list itself lies in DVC's cache under that md5.
"""

from __future__ import annotations

import configparser
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pathspec import PathSpec

_ALWAYS_IGNORED = (".git", ".hg", ".dvc/")


def digest(value: Any) -> str:
    """A short digest of JSON-like data, independent of the order of keys."""
    return hashlib.md5(json.dumps(value, sort_keys=True, default=str).encode(), usedforsecurity=False).hexdigest()


@lru_cache(maxsize=65536)
def _file_md5(path: str, *_state: int) -> str:
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def file_md5(path: Path) -> str:
    """The md5 of a file; remembered, in this process, while nobody touches it.

    Depends on: the file's content. Key: its path, device, inode, size, and both times; a program that sets the time of
    change back cannot set that of the inode.
    """
    state = path.stat()
    touched = state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
    return _file_md5(str(path), *touched)


def listing_md5(files: Mapping[str, str]) -> str:
    """The md5 of a folder that holds these files (relative path -> md5)."""
    entries = [{"md5": files[name], "relpath": name} for name in sorted(files)]
    return hashlib.md5(json.dumps(entries, sort_keys=True).encode(), usedforsecurity=False).hexdigest() + ".dir"


class Workspace:
    """Files of a DVC project as DVC sees them: ``.dvcignore`` at the root is heeded."""

    def __init__(self, root: Path) -> None:
        self.root = root
        ignore = root / ".dvcignore"
        lines = ignore.read_text().splitlines() if ignore.is_file() else []
        self._ignored = PathSpec.from_lines("gitwildmatch", [*_ALWAYS_IGNORED, *lines])

    def md5(self, path: str) -> str | None:
        """The md5 that DVC gives a project-relative file or folder, None when there is nothing."""
        full = self.root / path
        try:
            return listing_md5(self.listing(path)) if full.is_dir() else file_md5(full)
        except FileNotFoundError:  # removed meanwhile by a stage that runs
            return None

    def listing(self, path: str) -> dict[str, str]:
        """Relative path -> md5 of every file of a folder."""
        return {name: file_md5(self.root / path / name) for name in sorted(self.files(path))}

    def size(self, path: str) -> int:
        """Bytes of a file, or of all files of a folder."""
        full = self.root / path
        return sum((full / f).stat().st_size for f in self.files(path)) if full.is_dir() else full.stat().st_size

    def files(self, path: str) -> Iterator[str]:
        """Paths of all files below a folder, relative to it."""
        base = self.root / path
        for parent, folders, names in os.walk(base):
            inside = os.path.relpath(parent, self.root)  # a folder outside has no line in .dvcignore
            folders[:] = [f for f in folders if not self._ignored.match_file(f"{inside}/{f}/")]
            for name in names:
                if not self._ignored.match_file(f"{inside}/{name}"):
                    yield (Path(parent) / name).relative_to(base).as_posix()


def settings(root: Path) -> configparser.ConfigParser:
    """The project's DVC settings; ``config.local`` has the last word."""
    settings = configparser.ConfigParser(interpolation=None)
    settings.read([root / ".dvc" / "config", root / ".dvc" / "config.local"])
    return settings


def parsing_style(root: Path) -> dict[str, str]:
    """DVC's ``parsing`` settings: how a mapping becomes flags in a command."""
    found = settings(root)
    return dict(found["parsing"]) if found.has_section("parsing") else {}


def locks_by_link(root: Path) -> bool:
    """DVC's ``core.hardlink_lock``: locks are hard links, for file systems without flock."""
    return settings(root).getboolean("core", "hardlink_lock", fallback=False)
