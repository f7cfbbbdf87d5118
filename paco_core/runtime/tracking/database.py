"""MLflow stores: a client of one that answers, and a SQLite file that is complete or absent.

MLflow creates its tables by dozens of migrations, each committed separately. If it is killed between two of them, the
file that it leaves cannot be used or repaired. paco creates them in a temporary file, which is renamed when it is
complete.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from paco_core.io.atomic import atomic
from paco_core.io.file_locks import locked
from paco_core.io.files import DataError
from paco_core.io.imports import uncollected
from paco_core.io.secrets import bare, redacted
from paco_core.runtime.tracking.moved import follow
from paco_core.runtime.tracking.store import SERVERS, cause, limit_requests

COMPANIONS = ("-journal", "-wal", "-shm")  # SQLite's files next to a database; old ones would damage a new database
ANSWER_S = 5  # time limit for the first answer of a store
TIMED = ("postgresql", "mysql")  # databases that know `connect_timeout`
LOCK = Path(".paco") / "store.lock"  # in the folder of the store
#: The file is no database, or its tables are not those of MLflow; a full disk or a lock has another code.
DAMAGED = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
FORBIDDEN = {sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}


def connect(uri: str) -> Any:
    """MLflow's client of a store that answers: a server or a database within :data:`ANSWER_S` seconds.

    Raises:
        DataError: as :func:`open_client`, or when the store does not answer, with its address and the remedy.
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
    """Connect to a database once; MLflow itself tries for minutes."""
    from sqlalchemy import create_engine, make_url
    from sqlalchemy.exc import ArgumentError
    from sqlalchemy.pool import NullPool

    with suppress(ArgumentError, ImportError):  # no URL of a database; no driver
        url = make_url(uri)
        if url.get_backend_name() in TIMED:
            timed = url.set(query={"connect_timeout": str(ANSWER_S), **url.query})
            create_engine(timed, poolclass=NullPool).connect().close()


@uncollected()
def open_client(uri: str) -> Any:
    """MLflow's client of a store; a missing SQLite file is created first.

    Raises:
        DataError: when the SQLite file is damaged, with the remedy, or when MLflow cannot open stores of this kind.
        Exception: whatever MLflow raises when the store does not answer.
    """
    import mlflow
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import DatabaseError

    prepare(uri)
    limit_requests()
    try:
        return mlflow.MlflowClient(uri)
    except (MlflowException, ImportError) as error:
        raise DataError(f"MLFLOW_TRACKING_URI {bare(uri)}: MLflow cannot open it ({redacted(str(error))})") from None
    except DatabaseError as error:
        if (file := sqlite_file(uri)) is not None and isinstance(error.orig, sqlite3.Error):
            raise _explained(file, error.orig) from None
        raise


def prepare(uri: str) -> None:
    """Create the SQLite file of a store if it is missing, and follow a moved project; do nothing for other stores.

    Raises:
        DataError: when the file is damaged.
        OSError: when it cannot be read or written, with its path.
        sqlite3.Error: for other reasons, for example a lock.
    """
    file = sqlite_file(uri)
    if file is None:
        return
    if _is_missing(file):
        with locked(file.parent / LOCK):
            if _is_missing(file):  # no other process was faster
                _create(uri, file)
    try:
        follow(file)
    except sqlite3.Error as error:
        raise _explained(file, error) from None


def sqlite_file(uri: str) -> Path | None:
    """The file of a SQLite store; None for a server, another database, and a store in memory."""
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
    """Also an empty one: SQLite creates it when it opens it."""
    return not file.exists() or file.stat().st_size == 0


@uncollected()
def _create(uri: str, file: Path) -> None:
    """Create the tables as `mlflow db upgrade` does."""
    from mlflow.db import upgrade
    from sqlalchemy import make_url

    for end in COMPANIONS:
        file.with_name(f"{file.name}{end}").unlink(missing_ok=True)
    with atomic(file) as part:
        upgrade.callback(make_url(uri).set(database=str(part)).render_as_string(hide_password=False))


def _explained(file: Path, error: sqlite3.Error) -> Exception:
    """An error of SQLite with the file and the remedy; others are returned as they are."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the lower byte
    if code in FORBIDDEN:
        return PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
    if code not in DAMAGED:
        return error
    return DataError(
        f"{file}: MLflow cannot use this store ({error}); whatever created it was killed, or the disk was full. "
        f"Move it aside (mv {file} {file}.damaged) and run `paco sync`: it creates a new one and sends what is kept"
    )
