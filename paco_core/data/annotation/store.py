"""Answer store: people's answers in an append-only SQLite file. An answer is on the disk before it is confirmed.

The key of an answer is its annotator, instance and revision (1, 2, ... of that annotator on that instance). If an
annotator changes an answer, the store adds a revision. Triggers reject updates and deletions. Storing the same
revision again with the same content is no error: a page repeats its request if the confirmation was lost.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Literal

from paco_core.io.files import DataError
from paco_core.io.sqlite import use_wal

SCHEMA = 1
WAIT_S = 10.0  # for another process that writes
Verdict = Literal["ranked", "cannot_tell", "skipped", "withdrawn"]
FINAL = ("ranked", "cannot_tell")

_TABLES = """
CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE annotators (
  number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, token TEXT NOT NULL UNIQUE,
  active INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE TABLE answers (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  annotator TEXT NOT NULL REFERENCES annotators (name),
  instance_id TEXT NOT NULL,
  revision INTEGER NOT NULL CHECK (revision > 0),
  verdict TEXT NOT NULL CHECK (verdict IN ('ranked', 'cannot_tell', 'skipped', 'withdrawn')),
  ranking TEXT,            -- JSON list of candidate positions, best first
  shown TEXT NOT NULL,     -- JSON list of candidate positions, as they stood on the page
  seconds REAL NOT NULL,
  at TEXT NOT NULL,
  UNIQUE (annotator, instance_id, revision),
  CHECK ((verdict = 'ranked') = (ranking IS NOT NULL))
) STRICT;
CREATE TRIGGER answers_are_not_changed BEFORE UPDATE ON answers
  BEGIN SELECT RAISE(ABORT, 'answers are append-only'); END;
CREATE TRIGGER answers_are_not_deleted BEFORE DELETE ON answers
  BEGIN SELECT RAISE(ABORT, 'answers are append-only'); END;
"""
_COLUMNS = "annotator, instance_id, revision, verdict, ranking, shown, seconds, at"
_INSERT = f"INSERT INTO answers ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
#: Digests of the pictures that an answer is about: a separate table, which earlier versions ignore.
_PICTURES = (
    "CREATE TABLE IF NOT EXISTS seen (annotator TEXT NOT NULL, instance_id TEXT NOT NULL, revision INTEGER NOT NULL,"
    " pictures TEXT NOT NULL, PRIMARY KEY (annotator, instance_id, revision)) STRICT"
)

#: Digests of the pixels of panels, by the version of their grid and their number (:func:`.people.instance_digester`).
#: They can be computed again.
_PANELS = "CREATE TABLE IF NOT EXISTS panels (panel TEXT PRIMARY KEY, digest TEXT NOT NULL) STRICT"


class StaleAnswer(Exception):
    """The annotator has already stored another answer to this instance, for example in a second window."""


class NotStored(Exception):
    """An answer could not be written, for example because the disk is full. The store is unchanged."""


@dataclass(frozen=True)
class Annotator:
    """A person, by name; the token is the secret part of their link."""

    name: str
    token: str
    active: bool


@dataclass(frozen=True)
class AnnotatorAnswer:
    """One answer of an annotator to one instance; ``seconds`` is the time that the page was open.

    ``pictures`` is the digest of the pictures on the page (:func:`.people.instance_digester`), because the grids of an
    instance can be generated again. It is empty in answers of earlier versions, which count as answers about the
    present pictures.
    """

    annotator: str
    instance_id: str
    revision: int
    verdict: Verdict
    ranking: tuple[int, ...] | None
    shown: tuple[int, ...]
    seconds: float
    at: str = ""
    pictures: str = ""

    @property
    def content(self) -> tuple[str, tuple[int, ...] | None]:
        return self.verdict, self.ranking


class AnswerStore:
    """One SQLite file; safe for any number of threads and processes.

    Args:
        create: create the file if it is missing.

    Raises:
        DataError: if the file is missing, is not an answer store, or was written by a newer version.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path, self._lock = path, threading.RLock()
        if not create and not path.is_file():
            raise DataError(f"{path}: this answer store does not exist; run `paco annotate` to create it")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
        try:
            use_wal(self._db, WAIT_S)
            self._db.execute("PRAGMA synchronous = FULL")  # an answer is on the disk before it is confirmed
            self._db.execute("PRAGMA foreign_keys = ON")
            if create and not self._version():
                self._create()
            if (version := self._version()) != SCHEMA:
                raise sqlite3.DatabaseError(f"its version is {version}, this paco supports version {SCHEMA}")
            self._db.execute(_PICTURES)
            self._db.execute(_PANELS)
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise DataError(f"{path}: not a usable answer store: {error}") from None

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def _create(self) -> None:
        with self._transaction():
            if self._version():
                return  # another process was quicker
            if self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise sqlite3.DatabaseError("it holds tables of another program")
            statement = ""
            for line in _TABLES.splitlines(keepends=True):
                statement += line
                if sqlite3.complete_statement(statement):
                    self._db.execute(statement)
                    statement = ""
            self._db.execute(f"PRAGMA user_version = {SCHEMA}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing, one writer at a time."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk has rolled back already
                    self._db.execute("ROLLBACK")
                raise

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def __enter__(self) -> AnswerStore:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def setting(self, key: str, value: int | None, default: int | None = None) -> int | None:
        """A number of the study: stores ``value`` if there is one, else returns the stored number or the default."""
        with self._transaction():
            if value is not None:
                self._db.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (key, str(value)))
                return value
            row = self._db.execute("SELECT value FROM settings WHERE key = ?", (key,)).fetchone()
            return int(row[0]) if row else default

    def annotators(self) -> list[Annotator]:
        """All annotators, in the order in which they were added."""
        with self._lock:
            rows = self._db.execute("SELECT name, token, active FROM annotators ORDER BY number").fetchall()
        return [Annotator(name, token, bool(active)) for name, token, active in rows]

    def recruit(self, active: int) -> None:
        """Add annotators, each with a random token, until at least ``active`` of them are active."""
        with self._transaction():
            missing = active - sum(annotator.active for annotator in self.annotators())
            for _ in range(max(0, missing)):
                self._add()

    def _add(self, name: str | None = None) -> None:
        """Add an annotator. Without a name it gets the first free name ``annotator-N``."""
        existing_names = {annotator.name for annotator in self.annotators()}
        number = len(existing_names) + 1
        name = name or next(free for n in count(number) if (free := f"annotator-{n}") not in existing_names)
        row = (number, name, secrets.token_urlsafe(12))
        self._db.execute("INSERT INTO annotators (number, name, token) VALUES (?, ?, ?)", row)

    def retire(self, name: str) -> None:
        """Assign no more instances to an annotator. The answers stay in the store.

        Raises:
            DataError: if no annotator has this name.
        """
        with self._transaction():
            num_updated = self._db.execute("UPDATE annotators SET active = 0 WHERE name = ?", (name,)).rowcount
        if not num_updated:
            names = ", ".join(annotator.name for annotator in self.annotators()) or "none"
            raise DataError(f"{self.path}: there is no annotator {name!r}; the annotators are: {names}")

    def record(self, answer: AnnotatorAnswer) -> bool:
        """Store an answer and sync it to the disk; False if exactly this answer is already stored.

        Raises:
            StaleAnswer: if its revision is neither the next one nor stored with the same content.
            NotStored: if the database could not write. The store is unchanged.
        """
        try:
            with self._transaction():
                stored = self._revisions(answer.annotator, answer.instance_id)
                if answer.revision <= len(stored):
                    if stored[answer.revision - 1].content == answer.content:
                        return False
                    raise StaleAnswer(
                        f"{answer.instance_id}: revision {answer.revision} is already stored with a different answer"
                    )
                if answer.revision != len(stored) + 1:
                    raise StaleAnswer(f"{answer.instance_id}: revision {len(stored) + 1} is missing before this one")
                self._insert(answer)
        except sqlite3.Error as error:
            raise NotStored(str(error)) from None
        self._checkpoint()
        return True

    def restore(self, answers: Iterable[AnnotatorAnswer]) -> None:
        """Fill a fresh store with the answers of another one, in order of time; all or none.

        Annotators keep their names and get new tokens.
        """
        ordered = sorted(answers, key=lambda answer: (answer.at, answer.revision))
        names = sorted({answer.annotator for answer in ordered}, key=lambda name: (len(name), name))
        with self._transaction():
            for name in names:
                self._add(name)
            for answer in ordered:
                self._insert(answer)

    def _insert(self, answer: AnnotatorAnswer) -> None:
        self._db.execute(_INSERT, _row(answer))
        if answer.pictures:
            about = answer.annotator, answer.instance_id, answer.revision, answer.pictures
            self._db.execute("INSERT INTO seen VALUES (?, ?, ?, ?)", about)

    def _checkpoint(self) -> None:
        """Move the synced answers from the log into the file, so a copy of the file contains all answers.

        The answers are already safe in the log, so an error here is ignored.
        """
        with self._lock, suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def revision(self, annotator: str, instance_id: str, revision: int) -> AnnotatorAnswer | None:
        """One revision, or None if it does not exist yet."""
        stored = self._revisions(annotator, instance_id)
        return stored[revision - 1] if 0 < revision <= len(stored) else None

    def _revisions(self, annotator: str, instance_id: str) -> list[AnnotatorAnswer]:
        return self._select("WHERE annotator = ? AND instance_id = ? ORDER BY revision", (annotator, instance_id))

    def latest(self, annotator: str | None = None) -> list[AnnotatorAnswer]:
        """The last revision of each answer in order of time, of one annotator or of all."""
        chosen = "WHERE id IN (SELECT max(id) FROM answers {} GROUP BY annotator, instance_id) ORDER BY id"
        if annotator is None:
            return self._select(chosen.format(""), ())
        return self._select(chosen.format("WHERE annotator = ?"), (annotator,))

    def after(self, number: int) -> tuple[list[AnnotatorAnswer], int]:
        """The answers after row ``number`` of the table, in order of time, and the number of the last row."""
        with self._lock:
            ((newest,),) = self._query("SELECT coalesce(max(id), 0) FROM answers")
            return self._select("WHERE id > ? AND id <= ? ORDER BY id", (number, newest)), newest

    def panel_digests(self) -> dict[str, str]:
        """The digests that :meth:`keep_panel_digests` stored, by panel."""
        return dict(self._query("SELECT panel, digest FROM panels"))

    def keep_panel_digests(self, digests: Mapping[str, str]) -> None:
        """Store digests of panels. Errors are ignored: the digests can be computed again."""
        if digests:
            with suppress(sqlite3.Error), self._transaction():
                self._db.executemany("INSERT OR IGNORE INTO panels VALUES (?, ?)", digests.items())

    def every(self) -> list[AnnotatorAnswer]:
        """All revisions, in order of time."""
        return self._select("ORDER BY id", ())

    def _select(self, condition: str, values: Sequence[str | int]) -> list[AnnotatorAnswer]:
        joined = "answers LEFT JOIN seen USING (annotator, instance_id, revision)"
        rows = self._query(f"SELECT {_COLUMNS}, pictures FROM {joined} {condition}", values)  # noqa: S608
        return [
            AnnotatorAnswer(annotator, instance_id, revision, verdict, ranking and tuple(json.loads(ranking)),
                   tuple(json.loads(shown)), seconds, at, pictures or "")
            for annotator, instance_id, revision, verdict, ranking, shown, seconds, at, pictures in rows
        ]  # fmt: skip

    def _query(self, statement: str, values: Sequence[str | int] = ()) -> list[Any]:
        with self._lock:
            try:
                return self._db.execute(statement, values).fetchall()
            except sqlite3.DatabaseError as error:
                raise DataError(f"{self.path}: cannot be read ({error}); replace it with a complete copy") from None


def _row(answer: AnnotatorAnswer) -> tuple[object, ...]:
    return (
        answer.annotator,
        answer.instance_id,
        answer.revision,
        answer.verdict,
        None if answer.ranking is None else json.dumps(answer.ranking),
        json.dumps(answer.shown),
        answer.seconds,
        answer.at or datetime.now(UTC).isoformat(timespec="seconds"),
    )
