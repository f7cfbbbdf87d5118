"""The settings of the Dagster instance: ``dagster.yaml``, the database that the environment names, and ``.env``.

``python -m paco_pipelines.instance.settings`` writes them, and what DVC's page of plots draws with; `make setup` and
`paco init` do so. `make ui` writes the settings alone.
"""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from paco_core.io.files import write_text
from paco_core.io.project import project_root
from paco_pipelines.defs.home import ENV, HOME, WRITTEN
from paco_pipelines.instance.plots import write_vega

DEFAULTS = Path(__file__).with_name("dagster.yaml")
DATABASE = "DAGSTER_POSTGRES_URL"  # postgresql://user:password@host:5432/name


def write_settings(root: Path, home: Path) -> None:
    """Write ``home/dagster.yaml``: the project's file or paco's, with PostgreSQL if ``DAGSTER_POSTGRES_URL`` is set.

    The file names the variable, not its value: it holds a password, and every process of Dagster has it.
    """
    custom = root / "dagster.yaml"
    text = (custom if custom.is_file() else DEFAULTS).read_text(encoding="utf-8")
    if os.environ.get(DATABASE):
        settings = yaml.safe_load(text)
        config = {"postgres_url": {"env": DATABASE}}
        store = {"module": "dagster_dvc.postgres_storage", "class": "LockedPostgresStorage", "config": config}
        settings["storage"] = {"custom": store}
        text = yaml.safe_dump(settings, sort_keys=False)
    home.mkdir(parents=True, exist_ok=True)
    write_text(home / "dagster.yaml", text)


def name_home(root: Path) -> None:
    """Name ``.dagster`` in ``.env``, so that `dagster dev`, `dg` and `dagster schedule` need nothing exported.

    What else stands in that file stays; a ``DAGSTER_HOME`` of the environment goes before it.
    """
    path, own = root / ENV, f'{WRITTEN}{root / ".dagster"}}}"'
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    others = [line for line in lines if not line.startswith(WRITTEN)]
    if any(line.strip().removeprefix("export ").startswith(f"{HOME}=") for line in others):
        return  # the user's own
    if [*others, own] != lines:
        write_text(path, "\n".join([*others, own]) + "\n")


def prepare(root: Path) -> None:
    """Write all that a new folder needs, and its version control does not hold."""
    name_home(root)
    write_settings(root, root / ".dagster")
    write_vega(root)


if __name__ == "__main__":
    prepare(project_root())
