"""SQLite files that several processes open at once."""

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from paco_core.io.sqlite import use_wal


def test_connections_that_change_the_mode_at_once_all_succeed(tmp_path: Path) -> None:
    failures: list[Exception] = []

    def switch(path: Path, start: threading.Barrier) -> None:
        with closing(sqlite3.connect(path, timeout=10)) as connection:
            start.wait(30)
            try:
                use_wal(connection, 10)
            except sqlite3.Error as error:
                failures.append(error)

    for number in range(50):  # SQLite alone fails for about one file in twenty
        path, start = tmp_path / f"{number}.db", threading.Barrier(8)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE t (x)")
        threads = [threading.Thread(target=switch, args=(path, start)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert not failures


def test_a_file_that_stays_locked_is_reported_after_the_wait(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("CREATE TABLE t (x)")
        holder.execute("BEGIN EXCLUSIVE")
        with closing(sqlite3.connect(path, timeout=0)) as connection:
            start = time.monotonic()
            with pytest.raises(sqlite3.OperationalError) as caught:
                use_wal(connection, 0.2)
    assert caught.value.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
    assert time.monotonic() - start >= 0.2


def test_what_is_not_a_database_is_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"no database" * 1000)
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection, pytest.raises(sqlite3.DatabaseError):
        use_wal(connection, 10)
