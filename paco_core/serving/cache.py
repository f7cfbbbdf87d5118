"""Scores that were asked before, kept in one SQLite file."""

from __future__ import annotations

import errno
import hashlib
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from paco_core.files import DataError

CHUNK = 500  # keys a statement
WAIT_S = 30.0  # for another process that writes


def question_key(model: str, reckoning: str, instruction: str, first: str, second: str) -> bytes:
    """Digest of what determines a score: the served model's name, which carries its fingerprint, how it reckons
    (engine, number format, picture format), the rendered instruction, and both pictures' keys (pixels, size, mode)
    in order."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (model, reckoning, instruction, first, second):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()


class ScoreCache:
    """A table of finite scores, and how often each model's were asked for; several processes may use one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with closing(sqlite3.connect(self.path, timeout=WAIT_S)) as connection, connection:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=NORMAL")
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS scores (key BLOB PRIMARY KEY, value REAL NOT NULL) WITHOUT ROWID"
                )
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS lookups (model TEXT PRIMARY KEY, hits INTEGER, misses INTEGER)"
                )
                yield connection
        except sqlite3.DatabaseError as error:
            raise self._told(error) from None

    def _told(self, error: sqlite3.DatabaseError) -> Exception:
        """The same with its remedy: what is no fault of the file must not cost the scores in it."""
        code = getattr(error, "sqlite_errorcode", 0)
        kind = code & 0xFF  # the lower byte; the others tell it in more detail
        if kind == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE:  # the latter: for the file `-shm`
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return DataError(f"{self.path}: in use by another process for {WAIT_S:g} s ({error}); wait and run again")
        return DataError(f"{self.path}: not a usable score cache ({error}); delete it and run again")

    def get(self, model: str, keys: Sequence[bytes]) -> dict[bytes, float]:
        """The known ones among ``keys``; counts them for ``model``.

        Raises:
            DataError: when the file is damaged, or another process keeps it.
            OSError: ENOSPC naming the file when the disk is full.
        """
        found: dict[bytes, float] = {}
        with self._open() as connection:
            for start in range(0, len(keys), CHUNK):
                chunk = list(keys[start : start + CHUNK])
                marks = ",".join("?" * len(chunk))
                query = f"SELECT key, value FROM scores WHERE key IN ({marks})"  # noqa: S608  (marks only)
                found.update(connection.execute(query, chunk).fetchall())
            connection.execute(
                "INSERT INTO lookups VALUES (?, ?, ?) ON CONFLICT (model) DO UPDATE SET "
                "hits = hits + excluded.hits, misses = misses + excluded.misses",
                (model, len(found), len(keys) - len(found)),
            )
        return found

    def lookups(self, model: str) -> tuple[int, int]:
        """How many questions of a model were known so far, and how many were not; by all clients of this file.

        Raises:
            DataError, OSError: as :meth:`get`.
        """
        if not self.path.is_file():
            return 0, 0
        with self._open() as connection:
            row = connection.execute("SELECT hits, misses FROM lookups WHERE model = ?", (model,)).fetchone()
        return (row[0], row[1]) if row else (0, 0)

    def put(self, scores: Mapping[bytes, float]) -> None:
        """Keep scores.

        Raises:
            DataError, OSError: as :meth:`get`.
        """
        with self._open() as connection:
            connection.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?)", scores.items())
