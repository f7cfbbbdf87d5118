"""The Dagster instance: its stores, and its settings for runs that died."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import dagster as dg
import pytest

from dvc_project import process_group
from paco_core.io.files import DataError
from paco_pipelines.instance.settings import DATABASE, DEFAULTS, create_stores, write_settings


def test_stores_are_migrated_once(tmp_path: Path) -> None:
    shutil.copy(DEFAULTS, tmp_path)
    create_stores(tmp_path)
    for database in ("history/runs.db", "history/runs/index.db", "schedules/schedules.db"):
        with closing(sqlite3.connect(tmp_path / database)) as connection:
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


def test_a_run_is_retried_where_its_worker_died_and_a_slot_is_freed_after_its_stage_has_ended(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    write_settings(repository, tmp_path)
    with dg.DagsterInstance.get() as instance:
        assert (instance.run_retries_enabled, instance.run_retries_max_retries) == (True, 2)
        assert not instance.run_retries_retry_on_asset_or_op_failure
        assert instance.run_monitoring_enabled and instance.run_launcher.supports_check_run_worker_health
        freed_after_s = instance.run_monitoring_settings["free_slots_after_run_end_seconds"]
        assert freed_after_s > process_group._ORPHANS_GRACE_SECONDS
