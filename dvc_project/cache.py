"""Versions in DVC's cache."""

from __future__ import annotations

import json
from pathlib import Path

from dvc_project.hashing import settings


def cached(root: Path, md5: str) -> Path:
    """Where DVC's cache holds an object."""
    folder = root / ".dvc" / settings(root).get("cache", "dir", fallback="cache")
    return folder / "files" / "md5" / md5[:2] / md5[2:]


def cached_listing(root: Path, md5: str) -> dict[str, str] | None:
    """Relative path -> md5 of the files of a recorded folder, None when the cache does not know it."""
    path = cached(root, md5)
    if not path.is_file():
        return None
    return {str(e["relpath"]): str(e["md5"]) for e in json.loads(path.read_text())}
