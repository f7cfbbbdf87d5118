"""MLflow stores: a client of one that answers, and a SQLite file that is complete or absent.

MLflow creates its tables by dozens of migrations, each committed separately. If it is killed between two of them, the
file that it leaves cannot be used or repaired. paco creates them in a temporary file, which is renamed when it is
complete.

MLflow records absolute paths of the files of a run. :func:`follow` rewrites them when the project was moved or copied:
otherwise a run would create the earlier folder again, and MLflow's pages would show no files of earlier runs.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from dvc_project.file_locks import locked
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError
from paco_core.io.secrets import bare, redacted
from paco_core.runtime.tracking.store import ARTIFACTS, ARTIFACTS_URI, SERVERS, STORE, limit_requests, short

COMPANIONS = ("-journal", "-wal", "-shm")  # SQLite's files next to a database; old ones would damage a new database
ANSWER_S = 5  # time limit for the first answer of a store
TIMED = ("postgresql", "mysql")  # databases that know `connect_timeout`
LOCK = Path(".paco") / "store.lock"  # in the folder of the store
#: The file is no database, or its tables are not those of MLflow; a full disk or a lock has another code.
DAMAGED = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
FORBIDDEN = {sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}
#: Columns of MLflow's tables that contain paths.
PATHS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)


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
    except Exception as error:  # of sockets, requests, SQLAlchemy or MLflow  # noqa: BLE001
        raise DataError(
            f"MLflow at {bare(uri)} does not answer ({short(error)}); start its server, or name another store in "
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


def open_client(uri: str) -> Any:
    """MLflow's client of a store; a missing SQLite file is created first.

    Raises:
        DataError: when the SQLite file is damaged, with the remedy, or when MLflow cannot open stores of this kind.
        Exception: whatever MLflow raises when the store does not answer.
    """
    import mlflow
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import DatabaseError

    prepare_store(uri)
    limit_requests()
    try:
        return mlflow.MlflowClient(uri)
    except (MlflowException, ImportError) as error:
        raise DataError(f"MLFLOW_TRACKING_URI {bare(uri)}: MLflow cannot open it ({redacted(str(error))})") from None
    except DatabaseError as error:
        if (file := sqlite_file(uri)) is not None and isinstance(error.orig, sqlite3.Error):
            raise _explained(file, error.orig) from None
        raise


def prepare_store(uri: str) -> None:
    """Create the SQLite file of a store if it is missing, and follow a moved project; do nothing for other stores.

    Raises:
        DataError: when the file is damaged.
        OSError: when it cannot be read or written, with its path.
        sqlite3.Error: for other reasons, for example a lock.
    """
    file = sqlite_file(uri)
    if file is None:
        return
    if _is_empty(file):
        with locked(file.parent / LOCK):
            if _is_empty(file):  # no other process was faster
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


def _is_empty(file: Path) -> bool:
    """Whether a store is missing or empty: SQLite creates an empty file when it opens one."""
    return not file.exists() or file.stat().st_size == 0


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


def follow(file: Path) -> None:
    """Rewrite the paths that a moved or copied project's ``mlflow.db`` records, and print the change.

    Only paths in the default folder change: what ``MLFLOW_ARTIFACTS_DESTINATION`` chose stays. If the folder
    ``mlartifacts`` was not moved along, the message says that the earlier files are missing.

    Raises:
        sqlite3.Error: when the store cannot be read or written, or has no table of experiments.
    """
    root = file.resolve().parent
    with closing(sqlite3.connect(file, timeout=60)) as connection, connection:
        locations = {str(row[0]) for row in connection.execute("SELECT artifact_location FROM experiments")}
        if file.name != STORE or os.environ.get(ARTIFACTS_URI):
            return
        for location in sorted(locations - {f"{root.as_uri()}/{ARTIFACTS}"}):
            if not (location.startswith("file:") and location.endswith(f"/{ARTIFACTS}")):
                continue
            folder = Path(unquote(urlsplit(location).path))
            if folder.is_dir() and not ((root / "dvc.yaml").is_file() or (root / ARTIFACTS).is_dir()):
                continue  # a store that several projects share
            for earlier, present in (
                (location.removesuffix(f"/{ARTIFACTS}"), root.as_uri()),
                (str(folder.parent), str(root)),  # MLflow's experiment "Default"
            ):
                for table, column in PATHS:
                    connection.execute(
                        f"UPDATE {table} SET {column} = ? || substr({column}, ?) "  # noqa: S608, names of PATHS
                        f"WHERE substr({column}, 1, ?) = ?",
                        (present, len(earlier) + 1, len(earlier) + 1, f"{earlier}/"),
                    )
            print(f"{file}: this project was moved or copied; {_moved_files(folder, root)}", file=sys.stderr)


def _moved_files(earlier: Path, root: Path) -> str:
    """Where the files of earlier runs are, or how to get them."""
    if (root / ARTIFACTS).is_dir():
        return f"its files were in {earlier}, now {root / ARTIFACTS}"
    remedy = f"run `cp -a {earlier} {root}`" if earlier.is_dir() else "restore that folder from a backup"
    return f"the files of earlier runs are missing: they were in {earlier}, and belong in {root / ARTIFACTS} ({remedy})"


def with_present_store(event: dict[str, Any], root: Path) -> dict[str, Any]:
    """The first event of a journal that goes to the default store of its project: with the project's present place.

    Other events, and journals of other stores, are returned as they are.
    """
    store = Path(str(event.get("uri", "")).removeprefix("sqlite:///"))
    if store.name != STORE or not store.is_absolute() or event.get("artifacts") != store.with_name(ARTIFACTS).as_uri():
        return event
    here = root.resolve()
    return {**event, "uri": f"sqlite:///{here / STORE}", "artifacts": (here / ARTIFACTS).as_uri()}
