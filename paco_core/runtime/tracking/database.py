"""A SQLite store that is whole or absent.

MLflow makes its tables by dozens of migrations, each for itself: who is killed among them leaves a file that no
MLflow can use, nor mend. Here they are made in a file beside, which is renamed once it is whole.
"""

from __future__ import annotations

import errno
import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.io.atomic import atomic
from paco_core.io.file_locks import locked
from paco_core.io.files import DataError
from paco_core.io.imports import uncollected
from paco_core.io.secrets import bare, redacted
from paco_core.runtime.tracking.moved import follow
from paco_core.runtime.tracking.store import SERVERS, cause, limit_requests

if TYPE_CHECKING:
    from sqlalchemy import Engine

COMPANIONS = ("-journal", "-wal", "-shm")  # what SQLite keeps beside a file; an old one would spoil a new file
ANSWER_S = 5  # that a store may take to show that it answers
PORTS = {"postgresql": 5432, "mysql": 3306}  # of databases that MLflow supports and that know `connect_timeout`
LOCK = Path(".paco") / "store.lock"  # beside the store
#: The tables are not those that MLflow expects, or it is no database: neither a full disk, say, nor a lock.
DAMAGED = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

#: It is another user's, say.
FORBIDDEN = {sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}


def connect(uri: str) -> Any:
    """MLflow's client of a store that answers: a server, or a database, shows it within :data:`ANSWER_S` seconds.

    Raises:
        DataError: as :func:`open_client`, or when the store does not answer; the text names its address and the remedy.
        Exception: as :func:`open_client`, of a SQLite file.
    """
    if sqlite_file(uri) is not None:
        return open_client(uri)
    try:
        _reach_database(uri)
        client = open_client(uri)
        if uri.startswith(SERVERS):
            limit_requests(MLFLOW_HTTP_REQUEST_TIMEOUT=ANSWER_S, MLFLOW_HTTP_REQUEST_MAX_RETRIES=0)
            client.search_experiments(max_results=1)
    except DataError:
        raise
    except Exception as error:  # of sockets, requests, SQLAlchemy or MLflow
        raise DataError(
            f"MLflow at {bare(uri)} does not answer ({cause(error)}); start its server, or name another store in "
            "MLFLOW_TRACKING_URI"
        ) from None
    finally:
        limit_requests()
    return client


def _reach_database(uri: str) -> None:
    """Connect once to a database; other stores are left alone. MLflow itself tries again for most of an hour."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(uri)
        port = PORTS[url.get_backend_name()]
    except (ArgumentError, KeyError):
        return
    if url.host:
        socket.create_connection((url.host, url.port or port), ANSWER_S).close()
    timed = url.set(query={"connect_timeout": str(ANSWER_S), **url.query}).render_as_string(hide_password=False)
    with suppress(ImportError), _engine(timed) as engine, engine.connect():
        pass


@uncollected()
def open_client(uri: str) -> Any:
    """MLflow's client of a store, which is made before where it is a SQLite file that is missing.

    Raises:
        DataError: when the file is damaged; the text names it and the remedy. Also when MLflow cannot open stores of
            this kind, which it says with the whole URI.
        Exception: whatever MLflow raises when the store does not answer.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    prepare(uri)
    limit_requests()
    try:
        return mlflow.MlflowClient(uri)
    except (MlflowException, ImportError) as error:
        raise DataError(f"MLFLOW_TRACKING_URI {bare(uri)}: MLflow cannot open it ({redacted(str(error))})") from None


@uncollected()
def prepare(uri: str) -> None:
    """Make the SQLite file of a store where it is missing, and look whether MLflow can use it; else do nothing.

    A project that was moved has the places of its files moved, too (:mod:`paco_core.runtime.tracking.moved`).

    Raises:
        DataError: when the file is damaged.
        OSError: when it cannot be read or written, naming it.
        SQLAlchemyError: when it cannot be written, in the words of SQLite.
    """
    if (file := sqlite_file(uri)) is None:
        return
    if _is_missing(file):
        with locked(file.parent / LOCK):
            if _is_missing(file):  # nobody was faster
                _make(uri, file)
    _check(uri, file)
    follow(file)


def sqlite_file(uri: str) -> Path | None:
    """The file of a SQLite store; None for a server, another database, and one that is kept in memory."""
    if not uri.startswith("sqlite"):
        return None
    name: str | None
    if uri.startswith("sqlite:///") and "?" not in uri:
        name = uri.removeprefix("sqlite:///")
    else:
        from sqlalchemy import make_url

        name = make_url(uri).database
    return None if not name or name == ":memory:" or name.startswith("file:") else Path(name)


def has_models(file: Path) -> bool:
    """Whether a SQLite store has registered models, without an import of MLflow, which takes seconds and 200 MB.

    Also True if the file cannot be read: MLflow says why.
    """
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return database.execute("SELECT 1 FROM registered_models").fetchone() is not None
    except sqlite3.Error:
        return True


def _is_missing(file: Path) -> bool:
    """Also an empty one: SQLite makes it when it opens it."""
    return not file.exists() or file.stat().st_size == 0


def _make(uri: str, file: Path) -> None:
    """Only the tables: what the first experiment is depends on who opens the store first, a stage or a server."""
    from mlflow.store.db import utils
    from sqlalchemy import make_url

    _remove_companions(file)
    with atomic(file) as part:
        _remove_companions(part)  # of one who was killed
        try:
            url = make_url(uri).set(database=str(part)).render_as_string(hide_password=False)
            with _engine(url) as engine:
                utils._initialize_tables(engine)
        finally:
            _remove_companions(part)


def _remove_companions(file: Path) -> None:
    for end in COMPANIONS:
        file.with_name(f"{file.name}{end}").unlink(missing_ok=True)


def _check(uri: str, file: Path) -> None:
    """Have MLflow add the tables that an earlier version did not have, as it does itself, and name a damaged file."""
    from mlflow.exceptions import MlflowException
    from mlflow.store.db import utils
    from sqlalchemy.exc import DatabaseError

    try:
        with _engine(uri) as engine:
            utils._safe_initialize_tables(engine)
            utils._verify_schema(engine)
    except DatabaseError as error:
        kind = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF  # the lower byte
        if kind in FORBIDDEN:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file)) from None
        if kind not in DAMAGED:
            raise
        raise _damaged(file, str(error.orig)) from None
    except MlflowException:  # tables of an earlier version: MLflow says how to bring them up to date
        if _was_used(file):
            raise
        raise _damaged(file, "some migrations are missing, and it holds nothing") from None


def _damaged(file: Path, reason: str) -> DataError:
    return DataError(
        f"{file}: MLflow cannot use this store ({reason}); whatever created it was killed, or the disk was full. "
        f"Move it aside (mv {file} {file}.damaged) and run `paco sync`: it creates a new one and sends what is kept"
    )


def _was_used(file: Path) -> bool:
    """Whether MLflow ever opened the whole store: the first thing that it does then is to add an experiment."""
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute("SELECT 1 FROM experiments LIMIT 1").fetchone() is not None


@contextmanager
def _engine(uri: str) -> Iterator[Engine]:
    """No connection outlives the block: one that is kept would hold a file that was moved aside."""
    from mlflow.store.db import utils

    engine: Engine = utils.create_sqlalchemy_engine(uri)
    try:
        yield engine
    finally:
        engine.dispose()
