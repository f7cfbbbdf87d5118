"""Dagster's SQLite store, opened by one process at a time.

Dagster makes the tables and stamps their version in two steps, without a lock: of eight that open a new store at once
most fail, and two may stamp it, after which nobody can open it ("more than one head present"). Named in
``dagster.yaml``, so that the webserver, the daemon, runs and commands all go through it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from dagster._core.storage.sqlite_storage import DagsterSqliteStorage
from dagster._serdes import ConfigurableClassData

from paco_core.io.file_locks import locked

LOCK = "store.lock"  # beside the databases


class LockedSqliteStorage(DagsterSqliteStorage):
    """``DagsterSqliteStorage``; the databases are opened, and made where they are missing, under a file lock.

    Configuration: ``base_dir``, the folder of the databases, the same layout as Dagster's own.
    """

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Any) -> Self:
        return cls.from_local(config_value["base_dir"], inst_data)

    @classmethod
    def from_local(cls, base_dir: str, inst_data: ConfigurableClassData | None = None) -> Self:
        with locked(Path(base_dir) / LOCK):
            return super().from_local(base_dir, inst_data)
