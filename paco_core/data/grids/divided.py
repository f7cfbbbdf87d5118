"""Whether a prompt's picture holds a whole number of pixels for each panel, known before it is painted."""

from __future__ import annotations

from collections.abc import Iterable

from paco_core.data.records.records import PromptRecord
from paco_core.io.files import DataError


def refuse_undivided(records: Iterable[PromptRecord]) -> None:
    """Raise DataError naming a record whose picture does not divide into its panels."""
    for record in records:
        rows, columns = record.grid
        if record.height % rows or record.width % columns:
            raise DataError(
                f"prompt {record.idx}: {record.height} x {record.width} px do not divide into {record.layout} panels"
            )
