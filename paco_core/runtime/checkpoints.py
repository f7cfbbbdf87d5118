"""What stages go on with after a kill, or when a number such as ``epochs`` is raised: ``.paco/checkpoints/``.

It lies outside the outs: DVC deletes those before a run, versions them, and restores them from its cache. Each stage
has a folder, ``policies@flux_t2is``, with one folder an identity: a digest of all that decides what is computed, code
included. So weights that other code made are never gone on with, and a change that is taken back finds its own.
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

from paco_core.io.file_locks import locked, try_hold
from paco_core.io.files import DataError, file_stats
from paco_core.io.messages import meant
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


def listing(root: Path) -> list[CheckpointedRun]:
    """All checkpoints, the newest first. A training may replace its checkpoints at the same time."""
    folder = owner_root(root) / FOLDER
    runs: dict[Path, list[os.stat_result]] = defaultdict(list)
    for path, stat in file_stats(folder).items():
        stage, *identity = path.relative_to(folder).parts
        if len(identity) > 1:  # else a lock file
            runs[folder / stage / identity[0]].append(stat)
    found = [
        CheckpointedRun(run.parent.name, run, sum(s.st_size for s in stats), max(s.st_mtime for s in stats))
        for run, stats in runs.items()
    ]
    return sorted(found, key=lambda kept: kept.modified, reverse=True)


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """Be the only training of an identity; another one of it, in an experiment say, is waited for."""
    lock = _lock(place)
    with locked(lock):
        lock.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield


def _lock(place: Path) -> Path:
    return place.with_name(f"{place.name}.lock")


@contextmanager
def _nobody_trains(kept: CheckpointedRun) -> Iterator[bool]:
    """Keep trainings from an identity; False when one has it already."""
    lock = try_hold(_lock(kept.folder))
    if lock is None:
        yield False
        return
    with lock:
        yield True


def _remove(kept: CheckpointedRun) -> None:
    """Within :func:`_nobody_trains`."""
    with suppress(FileNotFoundError):  # another process removed it first
        shutil.rmtree(kept.folder)
    _lock(kept.folder).unlink(missing_ok=True)


def prune(root: Path, limit_gb: float) -> list[CheckpointedRun]:
    """Remove the oldest until all together take at most ``limit_gb``; those in use stay. Returns what went."""
    left, gone = listing(root), []
    total = sum(kept.size for kept in left)
    for kept in reversed(left):
        if total <= limit_gb * 1e9:
            break
        with _nobody_trains(kept) as free:
            if free:
                _remove(kept)
                total -= kept.size
                gone.append(kept)
    return gone


def drop(root: Path, stages: Sequence[str] = ()) -> list[CheckpointedRun]:
    """Remove what is kept of these stages, or of all. Returns what went.

    Raises:
        DataError: when nothing is kept of a stage that was named, or a training goes on with some of it, naming the
            training; nothing is removed then.
    """
    left = listing(root)
    known = {kept.stage for kept in left}
    if unknown := [name for name in stages if name not in known]:
        raise DataError(
            f"no checkpoint of {', '.join(unknown)}; {meant(unknown[0], known)}"
            f"there are some of: {', '.join(sorted(known)) or 'none'}"
        )
    gone = [kept for kept in left if not stages or kept.stage in stages]
    with ExitStack() as held:
        for kept in gone:
            if not held.enter_context(_nobody_trains(kept)):
                raise DataError(
                    f"{kept.stage} is being trained by {_lock(kept.folder).read_text() or 'another process'}, which "
                    f"resumes from {kept.folder.name[:12]}: stop it first, or wait; nothing was removed"
                )
        for kept in gone:
            _remove(kept)
    return gone


def text(found: Sequence[CheckpointedRun]) -> str:
    """A table for the terminal."""
    if not found:
        return "no checkpoints"
    rows = [
        (
            kept.stage,
            kept.folder.name[:12],
            f"{kept.size / 1e6:.1f} MB",
            f"{datetime.fromtimestamp(kept.modified, UTC):%Y-%m-%d %H:%M} UTC",
        )
        for kept in found
    ]
    return "\n".join([*text_table(rows, right=[2]), f"in all {sum(kept.size for kept in found) / 1e6:.1f} MB"])
