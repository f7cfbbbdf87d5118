"""The log of a training: one row per step or epoch, as CSV."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from paco_core.io.atomic import atomic

LOG = "training_log.csv"


def write_log(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Write the rows. Cells of missing metrics are empty."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with atomic(path) as part, part.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, columns)
        writer.writeheader()
        writer.writerows(rows)
