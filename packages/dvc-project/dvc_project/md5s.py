"""The md5s of files, remembered while their inodes, sizes and times stay the same, as DVC's own state does it.

What is remembered survives the process, in ``.dvc/tmp``: who asks again whether gigabytes are as recorded waits for
their names alone. The file can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import lru_cache
from pathlib import Path

from dvc_project.repository import DVC_FOLDER

MEMORY = "dvc-project-hashes.sqlite"
MAX_ENTRIES = 500_000  # files; the longest unasked are forgotten first
_SETTLED_NS = 2_000_000_000  # the coarsest clock of a file system: within it two edits can bear one time


class Md5s:
    """md5s by path. Without a ``file`` they are forgotten with the object."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file if file is not None and file.parent.parent.is_dir() else None
        self._by_key: dict[str, tuple[str, str]] = self._read()
        self._new: dict[str, tuple[str, str]] = {}

    @classmethod
    def of_repository(cls, root: Path) -> Md5s:
        """Those of a DVC repository, one object a process."""
        return _of_file(root / DVC_FOLDER / "tmp" / MEMORY)

    def __call__(self, path: str) -> str:
        """The md5 of a file.

        Raises:
            FileNotFoundError: when there is none.
        """
        return self.of(path, [path], lambda: file_md5(path))

    def of(self, key: str, paths: Sequence[str], compute: Callable[[], str]) -> str:
        """``compute()``, remembered under ``key`` as long as no file of ``paths`` changes.

        Raises:
            FileNotFoundError: when a file is missing.
        """
        stamp, age = _stamp(paths)
        cached = self._by_key.get(key)
        if cached is not None and cached[0] == stamp:
            return cached[1]
        md5 = compute()
        if age > _SETTLED_NS and _stamp(paths)[0] == stamp:
            self._by_key[key] = self._new[key] = stamp, md5
        return md5

    def save(self) -> None:
        """Keep what is new for other processes; a disk that cannot take it costs time only."""
        if not self._new or self._file is None:
            return
        rows = [(path, stamp, md5) for path, (stamp, md5) in self._new.items()]
        with suppress(OSError, sqlite3.Error, UnicodeEncodeError):  # the last: a name that is no text
            self._file.parent.mkdir(exist_ok=True)
            with closing(_open(self._file)) as database, database:
                database.execute("create table if not exists md5s (path primary key, stamp, md5)")
                database.executemany("insert or replace into md5s values (?, ?, ?)", rows)
                database.execute("delete from md5s where rowid <= (select max(rowid) from md5s) - ?", [MAX_ENTRIES])
        self._new.clear()

    def _read(self) -> dict[str, tuple[str, str]]:
        if self._file is None or not self._file.is_file():
            return {}
        try:
            with closing(_open(self._file)) as database:
                rows = database.execute("select path, stamp, md5 from md5s").fetchall()
            return {path: (stamp, md5) for path, stamp, md5 in rows}
        except sqlite3.OperationalError:  # busy, or on a disk that has no locks
            return {}
        except (sqlite3.Error, ValueError):
            with suppress(OSError):
                self._file.unlink()
            return {}


@lru_cache(maxsize=64)
def _of_file(file: Path) -> Md5s:
    return Md5s(file)


def _open(file: Path) -> sqlite3.Connection:
    database = sqlite3.connect(file, timeout=1)
    database.execute("pragma synchronous = off")
    return database


def _stamp(paths: Sequence[str]) -> tuple[str, int]:
    """Inodes, sizes and times of files, which change with their bytes, and how long ago the last change was, in ns.

    The time of change is the kernel's: nobody sets it back, as copying tools do with the time of modification.
    """
    states = [os.stat(path) for path in paths]
    text = " ".join(f"{state.st_ino} {state.st_size} {state.st_mtime_ns} {state.st_ctime_ns}" for state in states)
    return text, time.time_ns() - max(state.st_ctime_ns for state in states)


def file_md5(path: str | Path) -> str:
    """The md5 of a file's bytes, read now."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
