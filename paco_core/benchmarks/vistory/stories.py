"""The stories among the sets that ``t2is`` painted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.benchmarks.t2is_bench.sets import PaintedSet, painted_sets, read_records
from paco_core.data.records.story_records import story_of
from paco_core.io.files import DataError

if TYPE_CHECKING:
    from paco_core.io.rejected import Rejected


def painted_stories(painted: Path, rejected: Rejected) -> list[PaintedSet]:
    """What the out of ``t2is`` holds that is a story; records that are none go to ``rejected``."""
    records = []
    for record in read_records(painted, None):
        try:
            story_of(record)
        except DataError as error:
            rejected.add(f"record {record.idx}", str(error))
        else:
            records.append(record)
    return painted_sets(painted, records) if records else []
