"""DVC's own files after a ``kill -9``: it writes ``dvc.lock`` and ``.dvc/tmp/rwlock`` in place, and a half stays.

Every later DVC then stops ("validation failed", "JSON structure is corrupted"). Neither file holds anything that is
nowhere else: ``rwlock`` names processes, and what ``dvc.lock`` says of a stage is in DVC's run cache, from which a
``dvc repro`` without it restores the outs instead of running the stages again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dvc_project.errors import DvcProjectError
from dvc_project.hashing import locks_by_link
from dvc_project.locks import held
from dvc_project.templating import read_data

HALF = "dvc.lock.half"  # where half a dvc.lock goes, in .dvc/tmp
CONFLICT = ("<<<<<<<", ">>>>>>>")  # a merge's, for people to resolve


def put_aside(root: Path) -> list[str]:
    """Remove half an ``rwlock``, move half a ``dvc.lock`` away; what was done, for people.

    Nothing is touched while a DVC holds the lock of the file, nor with ``core.hardlink_lock``, whose locks are none
    of ours to read.
    """
    folder = root / ".dvc" / "tmp"
    if not folder.is_dir() or locks_by_link(root):
        return []
    said = []
    with held(folder / "rwlock.lock") as ours:
        if ours and _is_half_json(folder / "rwlock"):
            (folder / "rwlock").unlink()
            said.append("removed a half-written .dvc/tmp/rwlock that a killed DVC had left")
    with held(folder / "lock") as ours:
        if ours and _is_half_lock(root / "dvc.lock"):
            (root / "dvc.lock").replace(folder / HALF)
            said.append(
                f"moved a half-written dvc.lock that a killed DVC had left to .dvc/tmp/{HALF}; what DVC's cache holds "
                "is restored, not made again"
            )
    return said


def _is_half_json(path: Path) -> bool:
    try:
        return path.is_file() and not isinstance(json.loads(path.read_bytes()), dict)
    except ValueError:
        return True


def _is_half_lock(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        tree = read_data(path)
    except (DvcProjectError, ValueError):  # the latter: cut within a character
        return not any(mark in path.read_text(errors="replace") for mark in CONFLICT)
    stages = tree.get("stages")
    return "schema" not in tree or not isinstance(stages, Mapping) or not all(map(_is_whole, stages.values()))


def _is_whole(entry: Any) -> bool:
    """Whether DVC's schema would take an entry; what is cut off may be valid YAML, too."""
    if not isinstance(entry, Mapping) or not entry.get("cmd"):
        return False
    files = entry.get("params", {})
    paths = [entry.get(kind, []) for kind in ("deps", "outs")]
    return (
        isinstance(files, Mapping)
        and all(isinstance(values, Mapping) for values in files.values())
        and all(isinstance(listed, list) for listed in paths)
        and all(isinstance(one, Mapping) and "path" in one for listed in paths for one in listed)
    )
