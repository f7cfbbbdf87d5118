"""Cache of scores in a SQLite file."""

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
from paco_core.io.sqlite import use_wal

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


def query_key(model: str, scoring_fingerprint: str, instruction: str, *pictures: str) -> bytes:
    """Digest of everything that determines a score. Each order of a pair is a separate query.

    Threads, batches and GPUs change a score by rounding only, so they are not part of the key.

    Args:
        model: name of the served model. It contains the fingerprint of the folder: weights, chat template, tokenizer.
        scoring_fingerprint: engine, number format, kind of device, code or packages of the engine's environment, code
            of the client, and the image format of requests.
        instruction: the rendered prompt.
        pictures: digests of mode, size and pixels of each image, in order.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in (model, scoring_fingerprint, instruction, *pictures):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


class ScoreCache:
    """A table of scores. Several processes may use one file.

    Scores of an older version are deleted with a warning in the log.

    Args:
        bounds: lowest and highest valid score. A file has one pair of bounds.
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
                use_wal(connection, WAIT_S)
                connection.execute("PRAGMA synchronous=NORMAL")
                if _version(connection) != VERSION:
                    self._renew(connection)
                yield connection
        except sqlite3.DatabaseError as error:
            raise self._explained(error) from None

    def _renew(self, connection: sqlite3.Connection) -> None:
        """Create the table of this version. It replaces the table of an older version."""
        connection.execute("BEGIN IMMEDIATE")
        version = _version(connection)  # another process may have come first
        if version > VERSION:
            raise DataError(f"{self.path}: a newer version of paco wrote this score cache; upgrade, or delete the file")
        if version < VERSION:
            has_table = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'scores'").fetchone()[0]
            dropped = connection.execute("SELECT count(*) FROM scores").fetchone()[0] if has_table else 0
            connection.execute("DROP TABLE IF EXISTS scores")
            connection.execute(TABLE.format(*self._bounds))
            connection.execute(f"PRAGMA user_version = {VERSION}")
            if dropped:
                log.warning("%s: %d scores of an older version are dropped and will be asked again", self.path, dropped)
        connection.commit()

    def _explained(self, error: sqlite3.DatabaseError) -> Exception:
        """An error of SQLite with its remedy. The remedy deletes the file only if the file is damaged."""
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
        """The cached scores, by key.

        Raises:
            DataError: when the file is damaged, contains an invalid score, or another process locks it.
            OSError: with the file, when the disk is full (ENOSPC) or another user owns the file.
        """
        scores: dict[bytes, float] = {}
        with self._open() as connection:
            for start in range(0, len(keys), CHUNK):
                chunk = list(keys[start : start + CHUNK])
                marks = ",".join("?" * len(chunk))
                query = f"SELECT key, value FROM scores WHERE key IN ({marks})"  # noqa: S608  (marks only)
                scores.update(connection.execute(query, chunk).fetchall())
        wrong = [value for value in scores.values() if not self._is_score(value)]
        if wrong:
            raise DataError(
                f"{self.path}: {len(wrong)} of its entries are not scores in {self._range} (one is {wrong[0]!r}); "
                "delete the file and run again"
            )
        return scores

    def put(self, scores: Mapping[bytes, float]) -> None:
        """Store scores.

        Raises:
            ValueError: when a score is not a number within the bounds; none is stored then.
            DataError, OSError: as :meth:`get`.
        """
        wrong = [value for value in scores.values() if not self._is_score(float(value))]
        if wrong:
            raise ValueError(
                f"{len(wrong)} of {len(scores)} scores to keep are not in {self._range}; one is {wrong[0]!r}"
            )
        with self._open() as connection:
            connection.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?)", scores.items())
