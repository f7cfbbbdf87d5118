"""Subfigures: how pictures divide into panels, and prompts into shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from paco_core.data.records.prompt_text import parse_layout
from paco_core.data.records.records import PromptRecord
from paco_core.io.files import DataError

if TYPE_CHECKING:
    from PIL.Image import Image


@lru_cache(maxsize=1024)
def grid_size(layout: str, size: tuple[int, int]) -> tuple[int, int]:
    """(height, width) in pixels of a grid whose panels are as large as those of 2x2 panels in ``size``.

    A single panel is a picture of its own and fills ``size``.
    """
    rows, columns = parse_layout(layout)
    if rows * columns == 1:
        return size
    return size[0] * rows // 2, size[1] * columns // 2


def cut(image: Image, layout: str) -> list[Image]:
    """The panels of a picture in reading order, each of equal size.

    Raises:
        DataError: when the picture does not divide into the layout's rows and columns.
    """
    rows, columns = parse_layout(layout)
    if image.width % columns or image.height % rows:
        raise DataError(
            f"a picture {image.width} px wide and {image.height} px high does not divide into {layout} "
            f"panels ({rows} rows, {columns} columns); paint it at multiples of {columns} and {rows} px"
        )
    width, height = image.width // columns, image.height // rows
    return [
        image.crop((column * width, row * height, (column + 1) * width, (row + 1) * height))
        for row in range(rows)
        for column in range(columns)
    ]


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
