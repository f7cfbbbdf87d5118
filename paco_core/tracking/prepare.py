"""Makes a SQLite store that is missing, before a server opens it: ``python -m paco_core.tracking.prepare URI``."""

from __future__ import annotations

import sys

from paco_core.files import DataError
from paco_core.imports import uncollected
from paco_core.tracking import database


def main(uri: str) -> None:
    try:
        with uncollected():
            database.prepare(uri)
    except DataError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main(sys.argv[1])
