"""Makes a SQLite store that is missing, before anyone waits for it: ``python -m paco_core.tracking.prepare [URI]``."""

from __future__ import annotations

import sys
from pathlib import Path

from paco_core.files import DataError
from paco_core.imports import uncollected
from paco_core.tracking import database, tracking_uri, without_secrets
from paco_core.tracking.delivery import short


def main(uri: str) -> None:
    with uncollected():
        from sqlalchemy.exc import SQLAlchemyError

    try:
        database.prepare(uri)
    except (DataError, SQLAlchemyError, OSError) as error:
        raise SystemExit(f"MLflow at {without_secrets(uri)} cannot be used: {short(error)}") from None


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tracking_uri(Path.cwd()))
