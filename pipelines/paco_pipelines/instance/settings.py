"""The settings of the Dagster instance: ``dagster.yaml``, the database that the environment names, and ``.env``.

``python -m paco_pipelines.instance.settings`` writes them, and what DVC's page of plots draws with; `make setup` and
`paco init` do so. `make ui` writes the settings alone.
"""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from paco_core.io.files import DataError, write_text
from paco_core.io.project import project_root
from paco_pipelines.defs.home import ENV, HOME, WRITTEN

DEFAULTS = Path(__file__).with_name("dagster.yaml")
DATABASE = "DAGSTER_POSTGRES_URL"  # postgresql+psycopg2://user:password@host:5432/name
DRIVER = "postgresql+psycopg2://"
VEGA = Path(".dvc/plots/vega.js")
VEGA_LITE = "5.21"  # the last of the major version that DVC's templates are written for


def write_settings(root: Path, home: Path) -> None:
    """Write ``home/dagster.yaml``: the project's file or paco's, with PostgreSQL if ``DAGSTER_POSTGRES_URL`` is set.

    The file names the variable, not its value: it contains a password, and every process of Dagster has it.

    Raises:
        DataError: when the URL names another driver than psycopg2, which Dagster's storage is written for.
    """
    custom = root / "dagster.yaml"
    text = (custom if custom.is_file() else DEFAULTS).read_text(encoding="utf-8")
    if url := os.environ.get(DATABASE):
        if not url.startswith(DRIVER):  # SQLAlchemy 2.1 reads postgresql:// as psycopg 3
            raise DataError(
                f"{DATABASE}: expected {DRIVER}user:password@host:5432/name, got {url.partition(':')[0]}://…"
            )
        settings = {**yaml.safe_load(text), "storage": {"postgres": {"postgres_url": {"env": DATABASE}}}}
        text = yaml.safe_dump(settings, sort_keys=False)
    home.mkdir(parents=True, exist_ok=True)
    write_text(home / "dagster.yaml", text)


def name_home(root: Path) -> None:
    """Name ``.dagster`` in ``.env``, so that `dagster dev`, `dg` and `dagster schedule` need nothing exported.

    What else stands in that file stays; a ``DAGSTER_HOME`` of the environment goes before it.
    """
    path, setting = root / ENV, f'{WRITTEN}{root / ".dagster"}}}"'
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    other_lines = [line for line in lines if not line.startswith(WRITTEN)]
    if any(line.strip().removeprefix("export ").startswith(f"{HOME}=") for line in other_lines):
        return  # the user's own
    if [*other_lines, setting] != lines:
        write_text(path, "\n".join([*other_lines, setting]) + "\n")


def create_stores(home: Path) -> None:
    """Create the SQLite databases of an instance, unless they are there.

    Dagster creates them without a lock. If several processes open a new instance at once, most of them fail, and they
    may leave databases that Dagster refuses.
    """
    if os.environ.get(DATABASE) or (home / "schedules").is_dir():
        return
    import dagster as dg  # late: it takes a second

    dg.DagsterInstance.from_config(str(home)).dispose()


def write_vega(root: Path) -> None:
    """Write Vega, Vega-Lite and Vega-Embed (BSD-3-Clause) as one script, unless it is there.

    The page of `dvc plots show` loads it, and without it links to a public server and is blank without internet.
    """
    try:
        import vl_convert
    except ImportError:  # the page links to the server
        return
    if not (root / VEGA).is_file() and (root / VEGA).parent.is_dir():
        script = vl_convert.javascript_bundle(vl_version=VEGA_LITE)  # type: ignore[call-arg]  # its stub asks for a snippet
        write_text(root / VEGA, script)


def prepare(root: Path) -> None:
    """Write all that a new folder needs, and its version control does not hold."""
    name_home(root)
    write_settings(root, root / ".dagster")
    create_stores(root / ".dagster")
    write_vega(root)


if __name__ == "__main__":
    prepare(project_root())
