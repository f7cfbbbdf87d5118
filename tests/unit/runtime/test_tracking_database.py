"""A local store is complete or absent if its creation is killed; a damaged one is named with the remedy."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from paco_core.io.files import DataError
from paco_core.runtime import tracking
from paco_core.runtime.tracking import count_journals, database, open_run, tracking_uri
from paco_core.runtime.tracking.delivery import Delivery
from paco_core.runtime.tracking.journal import RunJournal
from tests.support.tracked import runs

#: Is killed as soon as the table `webhooks` exists, after dozens of migrations.
KILLED = """
import os, signal, sys
import sqlalchemy

@sqlalchemy.event.listens_for(sqlalchemy.Engine, "after_cursor_execute")
def kill(_connection, _cursor, statement, *_):
    if "CREATE TABLE webhooks " in statement:
        os.kill(os.getpid(), signal.SIGKILL)

from paco_core.runtime.tracking import connect
connect(sys.argv[1])
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sender_in_a_thread: None) -> Path:
    """A project that has no store yet."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


@pytest.mark.slow
def test_metrics_arrive_although_the_first_builder_was_killed(root: Path) -> None:
    command = [sys.executable, "-c", KILLED, tracking_uri(root)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == -signal.SIGKILL, result.stderr[-2000:]
    (part,) = root.glob(".paco-*.part/mlflow.db")
    assert not (root / "mlflow.db").exists()
    part.with_name("mlflow.db-wal").write_bytes(b"of the killed")
    (root / "mlflow.db-journal").write_bytes(b"of a store that was moved aside")
    messages: list[str] = []
    with open_run(root, "paco/x", "x", {}, print_line=messages.append) as tracker:
        tracker.metrics({"loss": 1.0}, 3)
    run = runs(root)["x"]
    assert messages == [] and (run.info.status, run.data.metrics) == ("FINISHED", {"loss": 1.0})
    assert [path.name for path in root.glob("*mlflow.db*")] == ["mlflow.db"] and not [*root.glob(".paco-*")]


@pytest.mark.parametrize("is_half_made", [False, True])
def test_a_store_that_cannot_be_opened_refuses_no_event(root: Path, mlflow_template: Path, is_half_made: bool) -> None:
    """Half-made, as by an MLflow that was killed: it has some tables, and no version of them."""
    (root / "mlflow.db").write_bytes(mlflow_template.read_bytes() if is_half_made else b"no database" * 1000)
    if is_half_made:
        with sqlite3.connect(root / "mlflow.db") as store:
            store.executescript("drop table alembic_version; drop table latest_metrics")
    journal = RunJournal.begin(root, {"kind": "run", "uri": tracking_uri(root)})
    journal.append({"kind": "metrics", "step": 0, "values": {"loss": 1.0}})
    delivery = Delivery(journal, tracking_uri(root))
    delivery.progress.offset = journal.waiting(0, limit=1)[0][1]  # the run was created before the damage
    with pytest.raises(DataError, match=rf"mv {root}/mlflow\.db {root}/mlflow\.db\.damaged"):
        delivery.step()
    assert journal.count_waiting() == 2
    journal.remove()  # as by a sender
    assert (journal.size(), journal.count_waiting(), journal.header()) == (0, 0, {})


def test_a_locked_store_is_not_called_damaged(tmp_path: Path) -> None:
    locked = sqlite3.OperationalError("database is locked")
    locked.sqlite_errorcode = sqlite3.SQLITE_BUSY
    assert database._explained(tmp_path / "mlflow.db", locked) is locked


def test_only_missing_files_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for uri in ("http://127.0.0.1:9", "postgresql://me@host/db", "sqlite://", "sqlite:///:memory:"):
        assert database.sqlite_file(uri) is None
        database.prepare_store(uri)
    assert database.sqlite_file("sqlite:////a/b.db?timeout=3") == Path("/a/b.db")
    assert database.sqlite_file("sqlite:///b.db") == Path("b.db")
    assert count_journals(tmp_path) == 0 and list(tmp_path.iterdir()) == []


def test_a_store_of_another_user_is_named_before_anything_is_computed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another user sees it; root may write anywhere."""
    file, real = root / "mlflow.db", os.access
    tracking.require_writable(root)  # a missing one will be made
    file.touch()
    tracking.require_writable(root)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != file and real(path, mode))
    with pytest.raises(DataError, match=r"mlflow\.db"):
        tracking.require_writable(root)
