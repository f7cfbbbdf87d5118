"""Makes a SQLite store that is missing, before anyone waits for it: ``python -m paco_core.runtime.tracking.prepare``.

The store is that of the project in the working directory; its URI is no argument, for everybody sees those.
"""

from __future__ import annotations

from pathlib import Path

from paco_core.io.files import DataError
from paco_core.io.imports import uncollected
from paco_core.io.secrets import bare
from paco_core.runtime.tracking import database, tracking_uri
from paco_core.runtime.tracking.store import short


def main(uri: str) -> None:
    with uncollected():
        from sqlalchemy.exc import SQLAlchemyError

    try:
        database.prepare(uri)
    except (DataError, SQLAlchemyError, OSError) as error:
        raise SystemExit(f"MLflow at {bare(uri)} cannot be used: {short(error)}") from None


if __name__ == "__main__":
    main(tracking_uri(Path.cwd()))
