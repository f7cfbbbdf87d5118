"""SQLite files that several processes open at once."""

from __future__ import annotations

import random
import sqlite3
import time


def use_wal(connection: sqlite3.Connection, wait_s: float) -> None:
    """Put a database into write-ahead logging mode.

    SQLite does not call its busy handler if two connections change the mode of one file at the same time: one of them
    fails at once with "database is locked". This function tries again.

    Args:
        wait_s: how long to try while other connections use the file.

    Raises:
        sqlite3.OperationalError: if the file is still locked after ``wait_s``.
        sqlite3.DatabaseError: if the file is not a database.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.001, 0.02))
