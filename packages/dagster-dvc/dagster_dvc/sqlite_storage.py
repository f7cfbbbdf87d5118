"""Dagster's SQLite store, opened by one process at a time.

Dagster makes the tables and stamps their version in two steps, without a lock: of eight that open a new store at once
most fail, and two may stamp it, after which nobody can open it ("more than one head present"). Named in a
``dagster.yaml``, so that the webserver, the daemon, runs and commands all go through it; it lies in an installed
package, because Dagster's console scripts cannot import a module of the project's folder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

import dagster as dg
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage
from dagster._serdes import ConfigurableClassData

from dvc_project.locks import alone

LOCK = "store.lock"  # beside the databases
DEFAULT = ".dagster"  # below the working directory, where DAGSTER_HOME is not set


class LockedSqliteStorage(DagsterSqliteStorage):
    """``DagsterSqliteStorage``; the databases are opened, and made where they are missing, under a file lock.

    Configuration: ``base_dir``, the folder of the databases, the same layout as Dagster's own. Without it,
    ``DAGSTER_HOME``, else ``.dagster`` in the working directory: `dagster dev` where nothing is exported has no home
    but a temporary folder, which goes when it ends.
    """

    @classmethod
    def config_type(cls) -> Any:
        return {"base_dir": dg.Field(dg.StringSource, is_required=False)}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Any) -> Self:
        folder = config_value.get("base_dir") or os.environ.get("DAGSTER_HOME") or Path.cwd() / DEFAULT
        return cls.from_local(str(folder), inst_data)

    @classmethod
    def from_local(cls, base_dir: str, inst_data: ConfigurableClassData | None = None) -> Self:
        with alone(Path(base_dir) / LOCK):
            return super().from_local(base_dir, inst_data)
