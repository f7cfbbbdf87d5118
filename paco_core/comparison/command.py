"""What ``paco compare`` does."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from paco_core.comparison import page, table
from paco_core.comparison.collect import Runs
from paco_core.files import DataError, write_text


def compare(root: Path, names: Sequence[str], out: Path) -> str:
    """Write the page and return the table.

    Raises:
        DataError: when a run is not found, or one is given twice.
    """
    store = Runs(root)
    runs = [store.find(name) for name in names]
    ids = [run.run_id for run in runs]
    if len(set(ids)) < len(ids):
        twice = next(run for run in runs if ids.count(run.run_id) > 1)
        raise DataError(f"run {twice.run_id} ({twice.name}) is named twice; runs of one name are told apart by id")
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    write_text(out, page.render(runs, store.picture, made))
    return f"{table.text(runs)}\n\n{out}: pictures, curves and figures side by side"
