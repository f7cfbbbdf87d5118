"""A project's own store after its folder was moved or copied.

MLflow records where a run's files lie by absolute paths: without this, a run in the new folder would create the old one
again and write there, and pages would show nothing.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from paco_core.runtime.tracking.store import ARTIFACTS, ARTIFACTS_URI, STORE

COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)


def follow(file: Path) -> None:
    """Rewrite the places of files that a moved or copied project's ``mlflow.db`` records, and print what they were.

    Only of the default store with files in the default folder, which was moved with it: what
    ``MLFLOW_ARTIFACTS_DESTINATION`` chose is left alone.

    Raises:
        sqlite3.Error: when the store cannot be written.
    """
    folder = file.resolve().parent / ARTIFACTS
    if file.name != STORE or not folder.is_dir() or os.environ.get(ARTIFACTS_URI):
        return
    own = folder.as_uri()
    with closing(sqlite3.connect(file, timeout=60)) as connection, connection:
        places = [place for (place,) in connection.execute("SELECT artifact_location FROM experiments")]
        found = {place for place in places if place and place.endswith(f"/{ARTIFACTS}")}
        for earlier in sorted(found - {own}):
            for table, column in COLUMNS:
                connection.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) "  # noqa: S608, names of the table above
                    f"WHERE {column} || '/' LIKE ? ESCAPE '!'",
                    (own, len(earlier) + 1, f"{_literal(earlier)}/%"),
                )
            print(f"{file}: this project was moved or copied; its files were in {earlier}, now {own}", file=sys.stderr)


def _literal(text: str) -> str:
    """A text as a pattern of LIKE."""
    return text.replace("!", "!!").replace("%", "!%").replace("_", "!_")
