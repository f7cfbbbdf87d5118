"""Scores that were asked before, kept in one SQLite file."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from paco_core.io.files import DataError

CHUNK = 500  # keys a statement
WAIT_S = 30.0  # for another process that writes
VERSION = 1  # of the table, and of how a score is computed: a file of an older one is emptied
PROBABILITY = (0.0, 1.0)
ANY_NUMBER = (-sys.float_info.max, sys.float_info.max)
TABLE = (
    "CREATE TABLE scores (key BLOB PRIMARY KEY, value REAL NOT NULL"
    " CHECK (typeof(value) = 'real' AND value BETWEEN {0} AND {1})) WITHOUT ROWID"
)
log = logging.getLogger("paco.serving")


def question_key(model: str, reckoning: str, instruction: str, *pictures: str) -> bytes:
    """Digest of what a score depends on.

    Depends on: the weights, chat template and tokenizer (``model``, whose name carries the fingerprint of the folder);
    what computes (``reckoning``: engine, number format, kind of device, code or packages of the engine's environment,
    the client's code, the format in which images travel); the rendered ``instruction``; mode, size and pixels of each
    of the ``pictures``, in order. Each order of a pair is a question of its own. Threads, batches and GPUs move a score
    by rounding and are left out.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in (model, reckoning, instruction, *pictures):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


class ScoreCache:
    """A table of scores; several processes may use one file.

    Scores that an older version computed are dropped, and the log says so.

    Args:
        bounds: least and highest score that the file may hold; one file has one pair of bounds.
    """

    def __init__(self, path: Path, bounds: tuple[float, float] = PROBABILITY) -> None:
        self.path, self._bounds = path, bounds

    def _is_score(self, value: object) -> bool:
        return isinstance(value, float) and self._bounds[0] <= value <= self._bounds[1]

    @property
    def _range(self) -> str:
        return f"[{self._bounds[0]:g}, {self._bounds[1]:g}]"

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with closing(sqlite3.connect(self.path, timeout=WAIT_S)) as connection, connection:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=NORMAL")
                if _version(connection) != VERSION:
                    self._renew(connection)
                yield connection
        except sqlite3.DatabaseError as error:
            raise self._explained(error) from None

    def _renew(self, connection: sqlite3.Connection) -> None:
        """Make the table of this version, in place of an older one's."""
        connection.execute("BEGIN IMMEDIATE")
        found = _version(connection)  # another process may have come first
        if found > VERSION:
            raise DataError(f"{self.path}: a newer version of paco wrote this score cache; upgrade, or delete the file")
        if found < VERSION:
            known = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'scores'").fetchone()[0]
            dropped = connection.execute("SELECT count(*) FROM scores").fetchone()[0] if known else 0
            connection.execute("DROP TABLE IF EXISTS scores")
            connection.execute(TABLE.format(*self._bounds))
            connection.execute(f"PRAGMA user_version = {VERSION}")
            if dropped:
                log.warning("%s: %d scores of an older version are dropped and will be asked again", self.path, dropped)
        connection.commit()

    def _explained(self, error: sqlite3.DatabaseError) -> Exception:
        """The same with its remedy: what is no fault of the file must not cost the scores in it."""
        if self.path.is_dir():
            return DataError(f"{self.path}: a folder, expected the file of a score cache; remove it, or name another")
        code = getattr(error, "sqlite_errorcode", 0)
        kind = code & 0xFF  # the lower byte; the others give more detail
        if kind == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE:  # the latter: for the file `-shm`
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        if kind in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            return PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.path))
        if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return DataError(f"{self.path}: in use by another process for {WAIT_S:g} s ({error}); wait and run again")
        return DataError(f"{self.path}: not a usable score cache ({error}); delete it and run again")

    def get(self, keys: Sequence[bytes]) -> dict[bytes, float]:
        """The scores that are known, by key.

        Raises:
            DataError: when the file is damaged, holds what is no score, or another process keeps it.
            OSError: naming the file, when the disk is full (ENOSPC) or it is another user's.
        """
        found: dict[bytes, float] = {}
        with self._open() as connection:
            for start in range(0, len(keys), CHUNK):
                chunk = list(keys[start : start + CHUNK])
                marks = ",".join("?" * len(chunk))
                query = f"SELECT key, value FROM scores WHERE key IN ({marks})"  # noqa: S608  (marks only)
                found.update(connection.execute(query, chunk).fetchall())
        wrong = [value for value in found.values() if not self._is_score(value)]
        if wrong:
            raise DataError(
                f"{self.path}: {len(wrong)} of its entries are not scores in {self._range} (one is {wrong[0]!r}); "
                "delete the file and run again"
            )
        return found

    def put(self, scores: Mapping[bytes, float]) -> None:
        """Keep scores.

        Raises:
            ValueError: when one is no number within the bounds; none is kept then.
            DataError, OSError: as :meth:`get`.
        """
        wrong = [value for value in scores.values() if not self._is_score(float(value))]
        if wrong:
            raise ValueError(
                f"{len(wrong)} of {len(scores)} scores to keep are not in {self._range}; one is {wrong[0]!r}"
            )
        with self._open() as connection:
            connection.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?)", scores.items())
