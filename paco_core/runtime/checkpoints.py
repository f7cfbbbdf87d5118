"""Checkpoints, ``.paco/checkpoints/``: stages resume from them after a kill, or when ``epochs`` is raised.

They are outside the outs, because DVC deletes outs before a run, versions them, and restores them from its cache. Each
stage has a folder, ``policies@flux_t2is``, with one folder per identity. An identity is a digest of everything that
decides the result, code included. So no stage resumes from weights of other code, and a change that you take back
finds its checkpoints again.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dvc_project.file_locks import locked, try_hold
from paco_core.io.files import DataError, read_file_stats
from paco_core.io.messages import did_you_mean
from paco_core.io.project import owner_root
from paco_core.io.text_table import text_table

FOLDER = Path(".paco") / "checkpoints"


@dataclass(frozen=True)
class CheckpointedRun:
    """What is kept of one run of a stage."""

    stage: str
    folder: Path
    size: int  # bytes
    modified: float  # seconds since the epoch


def stage_folder(root: Path, stage: str) -> Path:
    """Where the identities of a stage lie; those of DVC's experiments lie in the project that owns them."""
    return owner_root(root) / FOLDER / stage


def list_checkpoints(root: Path) -> list[CheckpointedRun]:
    """All checkpoints, the newest first. A training may replace its checkpoints at the same time."""
    folder = owner_root(root) / FOLDER
    runs: dict[Path, list[os.stat_result]] = defaultdict(list)
    for path, stat in read_file_stats(folder).items():
        stage, *identity = path.relative_to(folder).parts
        if len(identity) > 1:  # else a lock file
            runs[folder / stage / identity[0]].append(stat)
    checkpoints = [
        CheckpointedRun(run.parent.name, run, sum(s.st_size for s in stats), max(s.st_mtime for s in stats))
        for run, stats in runs.items()
    ]
    return sorted(checkpoints, key=lambda checkpoint: checkpoint.modified, reverse=True)


@contextmanager
def exclusive_training(place: Path) -> Iterator[None]:
    """Be the only training of an identity; another one of it, in an experiment say, is waited for."""
    lock = _lock(place)
    with locked(lock):
        lock.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield


def _lock(place: Path) -> Path:
    return place.with_name(f"{place.name}.lock")


def _remove(checkpoint: CheckpointedRun) -> None:
    """Call it while you hold the lock of the identity."""
    with suppress(FileNotFoundError):  # another process removed it first
        shutil.rmtree(checkpoint.folder)
    _lock(checkpoint.folder).unlink(missing_ok=True)


def prune(root: Path, limit_gb: float) -> list[CheckpointedRun]:
    """Remove the oldest until all together take at most ``limit_gb``; those in use stay. Returns what went."""
    checkpoints, removed = list_checkpoints(root), []
    total = sum(checkpoint.size for checkpoint in checkpoints)
    for checkpoint in reversed(checkpoints):
        if total <= limit_gb * 1e9:
            break
        if (lock := try_hold(_lock(checkpoint.folder))) is not None:
            with lock:
                _remove(checkpoint)
            total -= checkpoint.size
            removed.append(checkpoint)
    return removed


def drop(root: Path, stages: Sequence[str] = ()) -> list[CheckpointedRun]:
    """Remove what is kept of these stages, or of all. Returns what went.

    Raises:
        DataError: when nothing is kept of a stage that was named, or a training goes on with some of it, naming the
            training; nothing is removed then.
    """
    checkpoints = list_checkpoints(root)
    stages_with_checkpoints = {checkpoint.stage for checkpoint in checkpoints}
    if unknown := [name for name in stages if name not in stages_with_checkpoints]:
        raise DataError(
            f"no checkpoint of {', '.join(unknown)}; {did_you_mean(unknown[0], stages_with_checkpoints)}"
            f"there are some of: {', '.join(sorted(stages_with_checkpoints)) or 'none'}"
        )
    removed = [checkpoint for checkpoint in checkpoints if not stages or checkpoint.stage in stages]
    with ExitStack() as locks:
        for checkpoint in removed:
            file = _lock(checkpoint.folder)
            if (lock := try_hold(file)) is None:
                raise DataError(
                    f"{checkpoint.stage} is being trained by {file.read_text() or 'another process'}, which "
                    f"resumes from {checkpoint.folder.name[:12]}: stop it first, or wait; nothing was removed"
                )
            locks.enter_context(lock)
        for checkpoint in removed:
            _remove(checkpoint)
    return removed


def checkpoint_table(checkpoints: Sequence[CheckpointedRun]) -> str:
    """A table for the terminal."""
    if not checkpoints:
        return "no checkpoints"
    rows = [
        (
            checkpoint.stage,
            checkpoint.folder.name[:12],
            f"{checkpoint.size / 1e6:.1f} MB",
            f"{datetime.fromtimestamp(checkpoint.modified, UTC):%Y-%m-%d %H:%M} UTC",
        )
        for checkpoint in checkpoints
    ]
    total = sum(checkpoint.size for checkpoint in checkpoints)
    return "\n".join([*text_table(rows, right=[2]), f"in all {total / 1e6:.1f} MB"])
