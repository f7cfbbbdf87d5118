"""What a run may be called, looked up in the store's own file: MLflow takes seconds to import."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from paco_core.io.files import DataError
from paco_core.io.nearest import meant
from paco_core.io.project import EXPERIMENT_TAG
from paco_core.runtime.provenance.chain import STAGE_TAG
from paco_core.runtime.tracking import tracking_uri
from paco_core.runtime.tracking.database import sqlite_file

LATEST = 8
PREFIX = re.compile(r"[0-9a-f]{4,32}")
_RUNS = """
SELECT runs.run_uuid, runs.name, of.value, stage.value, runs.lifecycle_stage = 'active' FROM runs
LEFT JOIN tags AS of ON of.run_uuid = runs.run_uuid AND of.key = ?
LEFT JOIN tags AS stage ON stage.run_uuid = runs.run_uuid AND stage.key = ?
ORDER BY runs.start_time DESC
"""


def check(root: Path, names: Sequence[str]) -> None:
    """Refuse a name that no run has; does nothing where the store is a server, whose runs only MLflow can list.

    Raises:
        DataError: as :func:`unknown`.
    """
    file = sqlite_file(tracking_uri(root))
    if file is None or not file.is_file():
        return
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            rows = connection.execute(_RUNS, (EXPERIMENT_TAG, STAGE_TAG)).fetchall()
    except sqlite3.Error:  # MLflow says what is wrong with it
        return
    known = {str(name) for _, name, *_ in rows}
    for _, _, experiment, stage, _ in rows:
        known |= {str(experiment), f"{experiment}:{stage}"} if experiment else set()
    for text in names:
        begins = PREFIX.fullmatch(text) and any(row[0].startswith(text) for row in rows)
        if text not in known and not begins:
            raise unknown(text, [(run, str(name)) for run, name, *_, active in rows if active])


def unknown(text: str, runs: Sequence[tuple[str, str]]) -> DataError:
    """The error for a name that no run has.

    Args:
        runs: id and name of those that there are, the latest first.
    """
    latest = ", ".join(f"{run[:8]} ({name})" for run, name in runs[:LATEST])
    return DataError(
        f"no run or experiment is called {text!r}, nor does an id begin with it; "
        f"{meant(text, {name for _, name in runs})}the latest are: {latest or 'none'}"
    )
