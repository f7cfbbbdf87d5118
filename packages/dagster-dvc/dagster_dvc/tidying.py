"""What a stopped run leaves behind: outs that are only half there, and locks of processes that are gone.

DVC lives by two locks in ``.dvc/tmp``. ``lock`` is held with flock, which the kernel lets go with the process
(the file itself stays, always). ``rwlock`` is a JSON list of paths and of the process ids that read or write
them: a killed DVC leaves its lines there, and once such an id is given to another process, the stage counts
as busy for ever.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from dagster_dvc.half_written import put_aside
from dagster_dvc.process import Completed, began
from dvc_project.locks import held
from dvc_project.project import DvcProject, Stage
from dvc_project.repository import locks_by_link, tmp_folder
from dvc_project.rwlock import RWLOCK, lives

_WAIT_SECONDS = 2.0


def tidy_up(project: DvcProject, stage: Stage, done: Completed) -> list[str]:
    """After a stop: no half-written out of a stage that had begun, no lock of a process that is gone; what was done.

    To be called where the stage ran: process ids say nothing on another machine.
    """
    removed = remove_half_written(project, stage) if began(done) else []
    lines = [f"{stage.name} was stopped: removed the half-written {path}" for path in removed]
    lines += put_aside(project.root)
    released = release_dead_locks(project.root)
    return lines + [f"{stage.name} was stopped: released DVC's lock of the ended process {gone}" for gone in released]


def remove_half_written(project: DvcProject, stage: Stage) -> list[str]:
    """Remove the outs that a stopped run of ``stage`` left; returns their paths.

    DVC deletes the outs before it runs a stage, so what lies there and is not what ``dvc.lock`` records
    was written by the run that was stopped. Outs with ``persist: true`` stay: a stage resumes from them.
    """
    entry = project.lock().get(stage.name)
    removed = []
    for out in stage.outs:
        path = project.root / out.path
        if out.persist or "://" in out.path or not os.path.lexists(path):
            continue
        if entry is not None and project.workspace.md5(out.path) == entry.outs.get(out.path):
            continue
        with suppress(FileNotFoundError):  # another DVC removed it first
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        removed.append(out.path)
    return removed


def release_dead_locks(root: Path) -> list[int]:
    """Drop the lines of ``.dvc/tmp/rwlock`` whose process is gone; returns the process ids.

    The rule by which DVC itself drops them, applied before the ids can be used again. Nothing is touched
    while a DVC edits the file, when it is not what DVC writes, or with ``core.hardlink_lock``, whose locks
    are none of ours to read.
    """
    path = tmp_folder(root) / RWLOCK
    if not path.is_file() or locks_by_link(root):
        return []
    with held(path.with_name("rwlock.lock"), _WAIT_SECONDS) as ours:
        if not ours:
            return []
        try:
            lock: dict[str, Any] = json.loads(path.read_text())
            write = {p: info for p, info in lock.get("write", {}).items() if lives(info["pid"])}
            read = {p: [i for i in infos if lives(i["pid"])] for p, infos in lock.get("read", {}).items()}
            before = _ids(lock.get("write", {}), lock.get("read", {}))
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return []
        read = {p: infos for p, infos in read.items() if infos}
        gone = before - _ids(write, read)
        if gone:
            part = path.with_name(f".rwlock.{os.getpid()}.part")
            part.write_text(json.dumps({"write": write, "read": read}))
            part.replace(path)
        return sorted(gone)


def _ids(write: dict[str, Any], read: dict[str, Any]) -> set[int]:
    return {info["pid"] for info in write.values()} | {info["pid"] for infos in read.values() for info in infos}
