"""DVC's own files after a ``kill -9``: it writes ``dvc.lock`` and ``.dvc/tmp/rwlock`` in place, and a half stays.

Every later DVC then stops ("validation failed", "JSON structure is corrupted"). Of ``dvc.lock`` the whole records are
kept, and what was there is put by; what was lost is in DVC's run cache, from which a ``dvc repro`` restores the outs
instead of running the stages again. ``rwlock`` names processes, and nothing else.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

from dvc_project.lockfile import LOCK_FILE
from dvc_project.locks import held
from dvc_project.repository import locks_by_link, tmp_folder
from dvc_project.rwlock import RWLOCK
from dvc_project.salvage import whole_part

HALF = "dvc.lock.half"  # where half a dvc.lock goes, in .dvc/tmp


def put_aside(root: Path) -> list[str]:
    """Remove half an ``rwlock``, take the half record out of a ``dvc.lock`` that was cut off; what was done, in words.

    A file that DVC refuses for another reason is left: DVC says what is wrong with it. Nothing is touched while a DVC
    holds the lock of the file, nor with ``core.hardlink_lock``, whose locks are none of ours to read.
    """
    folder = tmp_folder(root)
    if not folder.is_dir() or locks_by_link(root):
        return []
    repairs = []
    with held(folder / "rwlock.lock") as ours:
        if ours and _is_half_json(folder / RWLOCK):
            (folder / RWLOCK).unlink()
            repairs.append("removed a half-written .dvc/tmp/rwlock that a killed DVC had left")
    lock = root / LOCK_FILE
    with held(folder / "lock") as ours:
        kept = whole_part(lock.read_bytes()) if ours and lock.is_file() else None
        if kept is not None:
            aside = _free_place(folder)
            lock.replace(aside)
            if kept:
                part = lock.with_name(f".{LOCK_FILE}.{os.getpid()}.part")
                part.write_bytes(kept)
                part.replace(lock)
            repairs.append(
                f"moved a half-written dvc.lock that a killed DVC had left to .dvc/tmp/{aside.name}"
                f"{', and kept its whole records' if kept else ''}; what DVC's cache holds is restored, not made again"
            )
    return repairs


def _free_place(folder: Path) -> Path:
    """Where nothing lies yet: what an earlier kill left may be wanted, too."""
    names = itertools.chain([HALF], (f"{HALF}.{number}" for number in itertools.count(2)))
    return next(folder / name for name in names if not (folder / name).exists())


def _is_half_json(path: Path) -> bool:
    try:
        if path.is_file():
            json.loads(path.read_bytes())
    except ValueError:
        return True
    return False
