"""Home of the Dagster instance: ``.env`` names ``.dagster`` of the project."""

from __future__ import annotations

from pathlib import Path

from paco_core.io.files import DataError

HOME = "DAGSTER_HOME"
ENV = ".env"  # read by Dagster's commands in the working directory, before they look for their home
WRITTEN = f'{HOME}="${{{HOME}:-'  # how a line of it begins that `make setup` wrote


def validate_home(root: Path) -> None:
    """Check that ``.env`` does not name the instance of the folder that this one was copied from.

    Raises:
        DataError: naming that folder, which would get the runs of this one.
    """
    path = root / ENV
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        if line.startswith(WRITTEN) and Path(line.removeprefix(WRITTEN).rstrip('}"')) != root / ".dagster":
            raise DataError(
                f"{path} names the Dagster instance of another folder, of which this one is a copy ({line}): run "
                "`python -m paco_pipelines.instance.settings` here"
            )
