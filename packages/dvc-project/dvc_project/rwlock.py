"""Which process writes which path: DVC notes it in ``.dvc/tmp/rwlock`` while a stage runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

from dvc_project.repository import tmp_folder

RWLOCK = "rwlock"


def lives(process: int) -> bool:
    """Whether a process of this machine is there."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def writing(root: Path) -> dict[str, int]:
    """Paths, relative to the project, that a living process writes, and which."""
    try:
        noted = json.loads((tmp_folder(root) / RWLOCK).read_text(encoding="utf-8")).get("write", {})
        found = {os.path.relpath(path, root): int(info["pid"]) for path, info in noted.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {path: process for path, process in found.items() if lives(process)}
