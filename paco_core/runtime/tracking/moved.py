"""The default store of a project after the folder of the project was moved or copied.

MLflow records absolute paths of the files of a run. Without this module, a run in the new folder would create the old
one again and write there, and MLflow's pages would show no files of earlier runs.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from paco_core.runtime.tracking.store import ARTIFACTS, ARTIFACTS_URI, STORE

COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)


def follow(file: Path) -> None:
    """Rewrite the paths that a moved or copied project's ``mlflow.db`` records, and print the change.

    New files go to the project's ``mlartifacts``. If that folder was not moved along, the message says that the earlier
    files are missing. Only paths in the default folder change: what ``MLFLOW_ARTIFACTS_DESTINATION`` chose stays.

    Raises:
        sqlite3.Error: when the store cannot be read or written, or has no table of experiments.
    """
    root = file.resolve().parent
    present = f"{root.as_uri()}/{ARTIFACTS}"
    with closing(sqlite3.connect(file, timeout=60)) as connection, connection:
        places = {str(place) for (place,) in connection.execute("SELECT artifact_location FROM experiments")}
        if file.name != STORE or os.environ.get(ARTIFACTS_URI):
            return
        for earlier in sorted(places - {present}):
            if not (earlier.startswith("file:") and earlier.endswith(f"/{ARTIFACTS}")):
                continue
            folder = Path(unquote(urlsplit(earlier).path))
            if folder.is_dir() and not ((root / "dvc.yaml").is_file() or (root / ARTIFACTS).is_dir()):
                continue  # a store that several projects share
            _replace(connection, earlier.removesuffix(f"/{ARTIFACTS}"), root.as_uri())
            _replace(connection, str(folder.parent), str(root))  # MLflow's own experiment "Default"
            print(f"{file}: this project was moved or copied; {_new_place(folder, root)}", file=sys.stderr)


def _new_place(earlier: Path, root: Path) -> str:
    """Where the files of earlier runs are, or how to get them."""
    if (root / ARTIFACTS).is_dir():
        return f"its files were in {earlier}, now {root / ARTIFACTS}"
    remedy = f"run `cp -a {earlier} {root}`" if earlier.is_dir() else "restore that folder from a backup"
    return f"the files of earlier runs are missing: they were in {earlier}, and belong in {root / ARTIFACTS} ({remedy})"


def _replace(connection: sqlite3.Connection, earlier: str, present: str) -> None:
    """Replace a folder at the beginning of all paths."""
    for table, column in COLUMNS:
        connection.execute(
            f"UPDATE {table} SET {column} = ? || substr({column}, ?) "  # noqa: S608, names of the table above
            f"WHERE substr({column}, 1, ?) = ?",
            (present, len(earlier) + 1, len(earlier) + 1, f"{earlier}/"),
        )


def with_present_store(event: dict[str, Any], root: Path) -> dict[str, Any]:
    """The first event of a journal that goes to the default store of its project: with the project's present place.

    Other events, and journals of other stores, are returned as they are.
    """
    store = Path(str(event.get("uri", "")).removeprefix("sqlite:///"))
    if store.name != STORE or not store.is_absolute() or event.get("artifacts") != store.with_name(ARTIFACTS).as_uri():
        return event
    here = root.resolve()
    return {**event, "uri": f"sqlite:///{here / STORE}", "artifacts": (here / ARTIFACTS).as_uri()}
