"""After a stop: removes the outs that a stage left half-written, and releases the locks of dead processes."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress

from dagster_dvc.process import Completed, began
from dvc_project.project import DvcProject, Stage
from dvc_project.rwlock import release_dead_locks


def tidy_up(project: DvcProject, stage: Stage, done: Completed) -> list[str]:
    """After a stop: no half-written out of a stage that had begun, no lock of a process that is gone; what was done.

    To be called where the stage ran: process ids say nothing on another machine.
    """
    removed = remove_half_written(project, stage) if began(done) else []
    lines = [f"{stage.name} was stopped: removed the half-written {path}" for path in removed]
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
