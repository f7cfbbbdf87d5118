"""How prompts are divided into shards, and pictures into panels: known without what paints them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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


def shard_of(records: Sequence[PromptRecord], shard: int, shards: Sequence[int]) -> list[PromptRecord]:
    """The prompts of one shard: prompt n goes to the shard at position ``n % len(shards)``.

    Raises:
        DataError: when there is no such shard.
    """
    if shard not in shards:
        raise DataError(f"no grid shard {shard}; grid_shards are {', '.join(map(str, shards))}")
    return list(records[list(shards).index(shard) :: len(shards)])
