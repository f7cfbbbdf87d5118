"""The settings of the Dagster instance: ``dagster.yaml``, and the database that the environment names."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from paco_core.io.atomic import atomic

DATABASE = "DAGSTER_POSTGRES_URL"  # postgresql://user:password@host:5432/name


def write_settings(root: Path, home: Path) -> None:
    """Write ``home/dagster.yaml``: that of the project, on PostgreSQL where ``DAGSTER_POSTGRES_URL`` is set.

    The file names the variable, not its value: it holds a password, and every process of Dagster has it.
    """
    text = (root / "dagster.yaml").read_text()
    if os.environ.get(DATABASE):
        settings = yaml.safe_load(text)
        config = {"postgres_url": {"env": DATABASE}}
        store = {"module": "pipelines.instance.postgres", "class": "LockedPostgresStorage", "config": config}
        settings["storage"] = {"custom": store}
        text = yaml.safe_dump(settings, sort_keys=False)
    home.mkdir(parents=True, exist_ok=True)
    with atomic(home / "dagster.yaml") as part:
        part.write_text(text)
