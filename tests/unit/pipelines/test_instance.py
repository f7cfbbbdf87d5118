"""The Dagster instance: its stores, and its settings for runs that died."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import dagster as dg
import pytest

from dvc_project import process_group
from paco_core.io.files import DataError
from paco_pipelines.instance.settings import DATABASE, DEFAULTS, create_stores, write_settings

AT_ONCE = 8
OPENS = """
import pathlib, sys, time
import dagster as dg
pathlib.Path(sys.argv[1], f"ready-{sys.argv[2]}").touch()
deadline = time.monotonic() + 300
while not pathlib.Path(sys.argv[1], "go").exists():
    assert time.monotonic() < deadline
    time.sleep(0.001)
with dg.DagsterInstance.get() as instance:
    print(len(instance.get_runs()))
"""


@pytest.mark.slow
def test_eight_at_once_open_one_sound_store(repository: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(DEFAULTS, home)
    create_stores(home)  # as `make setup` does
    env = {**os.environ, "DAGSTER_HOME": str(home), "PYTHONPATH": str(repository)}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", OPENS, str(tmp_path), str(n)],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for n in range(AT_ONCE)
    ]  # fmt: skip
    deadline = time.monotonic() + 300
    while len(list(tmp_path.glob("ready-*"))) < AT_ONCE and all(child.poll() is None for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (tmp_path / "go").touch()
    said = [child.communicate(timeout=300) for child in children]
    assert [out for out, _ in said] == ["0\n"] * AT_ONCE, said
    for database in ("history/runs.db", "history/runs/index.db", "schedules/schedules.db"):
        with closing(sqlite3.connect(home / database)) as connection:
            assert len(connection.execute("SELECT version_num FROM alembic_version").fetchall()) == 1, database


def test_the_store_is_where_dagster_keeps_it_by_default(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance that was made before goes on as it is."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with dg.DagsterInstance.get() as plain:
        plain.report_runless_asset_event(dg.AssetMaterialization("a"))
    shutil.copy(DEFAULTS, tmp_path)
    with dg.DagsterInstance.get() as instance:
        assert instance.get_latest_materialization_event(dg.AssetKey("a")) is not None


def test_a_database_of_another_driver_is_refused(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATABASE, "postgresql+psycopg2://me:secret@host/db")
    write_settings(repository, tmp_path)
    create_stores(tmp_path)
    text = (tmp_path / "dagster.yaml").read_text()
    assert f"env: {DATABASE}" in text and "secret" not in text and not (tmp_path / "schedules").exists()
    monkeypatch.setenv(DATABASE, "postgresql://me:secret@host/db")
    with pytest.raises(DataError, match=r"expected postgresql\+psycopg2://.*, got postgresql://…$"):
        write_settings(repository, tmp_path)


def test_a_run_is_retried_only_where_its_worker_died(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    shutil.copy(DEFAULTS, tmp_path)
    with dg.DagsterInstance.get() as instance:
        assert (instance.run_retries_enabled, instance.run_retries_max_retries) == (True, 2)
        assert not instance.run_retries_retry_on_asset_or_op_failure


def test_runs_are_monitored_and_a_slot_is_freed_after_its_stage_has_ended(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    write_settings(repository, tmp_path)
    with dg.DagsterInstance.get() as instance:
        assert instance.run_monitoring_enabled
        assert instance.run_launcher.supports_check_run_worker_health
        assert (
            instance.run_monitoring_settings["free_slots_after_run_end_seconds"] > process_group._ORPHANS_GRACE_SECONDS
        )
