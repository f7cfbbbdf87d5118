"""``.dvc/tmp/rwlock``: which process reads or writes which path; DVC writes it while a stage runs.

A killed DVC leaves its lines in the file. When such a process id is used again, the stage counts as busy for ever.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dvc_project.file_locks import try_hold
from dvc_project.paths import replace_text
from dvc_project.repository import locks_by_link, tmp_folder

RWLOCK = "rwlock"
_WAIT_SECONDS = 2.0


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
    """Paths, relative to the project, that a living process writes, and its id."""
    try:
        lock = json.loads((tmp_folder(root) / RWLOCK).read_text(encoding="utf-8")).get("write", {})
        writers = {os.path.relpath(path, root): int(info["pid"]) for path, info in lock.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {path: process for path, process in writers.items() if lives(process)}


def release_dead_locks(root: Path) -> list[int]:
    """Drop the lines of processes that are gone, as DVC itself does before the ids can be used again; returns the ids.

    A file that a killed DVC wrote in part, which every later DVC would refuse, is removed. Nothing is touched while a
    DVC edits the file, or with ``core.hardlink_lock``, whose locks are no flocks.
    """
    path = tmp_folder(root) / RWLOCK
    if not path.is_file() or locks_by_link(root):
        return []
    lock_file = try_hold(path.with_name("rwlock.lock"), _WAIT_SECONDS)
    if lock_file is None:
        return []
    with lock_file:
        try:
            lock: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            path.unlink(missing_ok=True)
            return []
        try:
            write = {p: info for p, info in lock.get("write", {}).items() if lives(info["pid"])}
            read = {p: [i for i in infos if lives(i["pid"])] for p, infos in lock.get("read", {}).items()}
            before = _ids(lock.get("write", {}), lock.get("read", {}))
        except (KeyError, TypeError, AttributeError):  # not written by DVC
            return []
        read = {p: infos for p, infos in read.items() if infos}
        released = before - _ids(write, read)
        if released:
            replace_text(path, json.dumps({"write": write, "read": read}))
        return sorted(released)


def _ids(write: dict[str, Any], read: dict[str, Any]) -> set[int]:
    return {info["pid"] for info in write.values()} | {info["pid"] for infos in read.values() for info in infos}
