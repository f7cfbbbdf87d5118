"""Panels: division of pictures into panels and of prompts into shards, and access to ``<grid id>#<panel>``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.data.records.prompt_text import parse_layout
from paco_core.data.records.records import PromptRecord, parse_ref
from paco_core.io.files import DataError
from paco_core.io.shards import GRID_COLUMNS, ShardReader

if TYPE_CHECKING:
    from PIL.Image import Image


@lru_cache(maxsize=1024)
def grid_size(layout: str, size: tuple[int, int]) -> tuple[int, int]:
    """(height, width) in pixels of a grid whose panels are as large as the panels of a 2x2 grid of ``size``.

    A grid with a single panel has ``size``.
    """
    rows, columns = parse_layout(layout)
    if rows * columns == 1:
        return size
    return size[0] * rows // 2, size[1] * columns // 2


def split_grid(image: Image, layout: str) -> list[Image]:
    """The panels of a picture in reading order, each of equal size.

    Raises:
        DataError: if the picture does not divide into the rows and columns of the layout.
    """
    rows, columns = parse_layout(layout)
    if image.width % columns or image.height % rows:
        raise DataError(
            f"a picture {image.width} px wide and {image.height} px high does not divide into {layout} "
            f"panels ({rows} rows, {columns} columns); choose a width that is a multiple of {columns} and a height "
            f"that is a multiple of {rows}"
        )
    width, height = image.width // columns, image.height // rows
    return [
        image.crop((column * width, row * height, (column + 1) * width, (row + 1) * height))
        for row in range(rows)
        for column in range(columns)
    ]


def validate_divisible(records: Iterable[PromptRecord]) -> None:
    """Raise DataError, with the prompt id, if the picture of a record does not divide into its panels."""
    for record in records:
        rows, columns = record.grid
        if record.height % rows or record.width % columns:
            raise DataError(
                f"prompt {record.idx}: {record.height} x {record.width} px do not divide into {record.layout} panels"
            )


def shard_of(records: Sequence[PromptRecord], shard: int, shards: Sequence[int]) -> list[PromptRecord]:
    """The prompts of one shard: prompt n goes to the shard at position ``n % len(shards)``.

    Raises:
        DataError: if there is no such shard.
    """
    if shard not in shards:
        raise DataError(f"there is no grid shard {shard}; grid_shards are {', '.join(map(str, shards))}")
    return list(records[list(shards).index(shard) :: len(shards)])


CACHED_GRIDS = 512  # 1.6 GB of 1024 px grids, 6 MB of the storybook's


class PanelStore:
    """Panels of the grids in shards. The most recently used grids stay in memory."""

    def __init__(self, grids: ShardReader, cached_grids: int = CACHED_GRIDS) -> None:
        self.grids, self.cached_grids = grids, cached_grids
        self._panels: OrderedDict[str, list[Image]] = OrderedDict()

    @classmethod
    def below(cls, root: Path, *more_roots: Path) -> PanelStore:
        """All shards below ``root`` (``data/grids``) and ``more_roots``, such as ``data/pairs`` with editing pairs."""
        return cls(ShardReader.below(root, *more_roots, require=GRID_COLUMNS))

    def versions(self) -> dict[str, str]:
        """Grid id -> md5 of its file and its layout, which determine its panels. Grids without an md5 are skipped."""
        index = self.grids.index
        if "md5" not in index:
            return {}
        rows: Any = index.dropna(subset=["md5"])
        return dict(zip(rows["id"], rows["md5"] + " " + rows["layout"], strict=True))

    def panels(self, grid_id: str) -> list[Image]:
        """All panels of a grid in reading order.

        Raises:
            DataError: if the grid is in no shard, is damaged, or does not divide into its layout.
        """
        if grid_id not in self._panels:
            image = self.grids.read(grid_id)
            try:
                panels = split_grid(image, str(self.grids.index.loc[grid_id, "layout"]))
            except DataError as error:
                raise DataError(f"grid {grid_id}: {error}") from None
            self._panels[grid_id] = panels
            while len(self._panels) > self.cached_grids:
                self._panels.popitem(last=False)
        self._panels.move_to_end(grid_id)
        return self._panels[grid_id]

    def panel(self, ref: str) -> Image:
        """One panel.

        Raises:
            DataError: if the reference is invalid, or its grid has no such panel.
        """
        grid_id, number = parse_ref(ref)
        panels = self.panels(grid_id)
        if number >= len(panels):
            raise DataError(f"{ref}: grid {grid_id} has {len(panels)} panels, numbered from 0")
        return panels[number]
