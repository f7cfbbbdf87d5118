"""Creates a missing SQLite store before a stage waits for it: ``python -m paco_core.runtime.tracking.prepare``.

The store is that of the project in the working directory. Its URI is no argument, because everybody sees arguments.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from paco_core.io.files import DataError
from paco_core.io.secrets import bare
from paco_core.runtime.tracking import connect, tracking_uri
from paco_core.runtime.tracking.store import short

if __name__ == "__main__":
    uri = tracking_uri(Path.cwd())
    try:
        connect(uri)
    except (DataError, OSError, SQLAlchemyError) as error:
        raise SystemExit(f"MLflow at {bare(uri)} cannot be used: {short(error)}") from None
