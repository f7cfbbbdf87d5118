"""A project's own store after its folder was moved or copied.

MLflow records where a run's files are by absolute paths: without this, a run in the new folder would create the old one
again and write there, and pages would show nothing.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Mapping
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

    New files go to the project's ``mlartifacts``, also if that folder was not moved along: then the message says that
    the earlier files are missing. Only of the default store with files in the default folder: what
    ``MLFLOW_ARTIFACTS_DESTINATION`` chose is left alone.

    Raises:
        sqlite3.Error: when the store cannot be written.
    """
    root = file.resolve().parent
    if file.name != STORE or os.environ.get(ARTIFACTS_URI):
        return
    present = f"{root.as_uri()}/{ARTIFACTS}"
    with closing(sqlite3.connect(file, timeout=60)) as connection, connection:
        places = [str(place) for (place,) in connection.execute("SELECT artifact_location FROM experiments")]
        moved = {place for place in places if place.startswith("file:") and place.endswith(f"/{ARTIFACTS}")}
        for earlier in sorted(moved - {present}):
            folder = Path(unquote(urlsplit(earlier).path))
            if folder.is_dir() and not (_is_project(root) or (root / ARTIFACTS).is_dir()):
                continue  # a store that several projects share
            _replace(connection, earlier.removesuffix(f"/{ARTIFACTS}"), root.as_uri())
            _replace(connection, str(folder.parent), str(root))  # MLflow's own experiment "Default"
            print(f"{file}: this project was moved or copied; {_missing(folder, root)}", file=sys.stderr)


def _is_project(root: Path) -> bool:
    return (root / "dvc.yaml").is_file()


def _missing(earlier: Path, root: Path) -> str:
    """Where the files of earlier runs are, or how to get them."""
    if (root / ARTIFACTS).is_dir():
        return f"its files were in {earlier}, now {root / ARTIFACTS}"
    remedy = f"run `cp -a {earlier} {root}`" if earlier.is_dir() else "restore that folder from a backup"
    return f"the files of earlier runs are missing: they were in {earlier}, and belong in {root / ARTIFACTS} ({remedy})"


def _replace(connection: sqlite3.Connection, earlier: str, present: str) -> None:
    """Replace the beginning of all paths, up to a slash."""
    for table, column in COLUMNS:
        connection.execute(
            f"UPDATE {table} SET {column} = ? || substr({column}, ?) "  # noqa: S608, names of the table above
            f"WHERE {column} LIKE ? ESCAPE '!'",
            (present, len(earlier) + 1, f"{_literal(earlier)}/%"),
        )


def _literal(text: str) -> str:
    """A text as a pattern of LIKE."""
    return text.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def with_present_store(event: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """The first event of a journal, which goes to the default store of its project: where the project is now.

    Other events, and journals of other stores, are returned as they are.
    """
    if event.get("kind") != "run":
        return dict(event)
    store = Path(str(event.get("uri", "")).removeprefix("sqlite:///"))
    if store.name != STORE or not store.is_absolute() or event.get("artifacts") != store.with_name(ARTIFACTS).as_uri():
        return dict(event)
    here = root.resolve()
    return {**event, "uri": f"sqlite:///{here / STORE}", "artifacts": (here / ARTIFACTS).as_uri()}
