"""Panels by reference: the pictures behind ``<grid id>#<panel>``."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.data.records.records import parse_ref
from paco_core.data.records.subfigures import cut
from paco_core.io.files import DataError
from paco_core.io.shards import GRID_COLUMNS, ShardReader

if TYPE_CHECKING:
    from PIL.Image import Image

CACHED_GRIDS = 512  # 1.6 GB of 1024 px grids, 6 MB of the storybook's


class PanelStore:
    """Reads grids from shards and hands out their panels; the grids used last stay in memory."""

    def __init__(self, grids: ShardReader, cached_grids: int = CACHED_GRIDS) -> None:
        self.grids, self.cached_grids = grids, cached_grids
        self._panels: OrderedDict[str, list[Image]] = OrderedDict()

    @classmethod
    def below(cls, root: Path, *others: Path) -> PanelStore:
        """All shards below ``root`` (``data/grids``) and ``others`` (``data/pairs``, where editing pairs lie)."""
        return cls(ShardReader.below(root, *others, require=GRID_COLUMNS))

    def panels(self, grid_id: str) -> list[Image]:
        """All panels of a grid in reading order.

        Raises:
            DataError: when the grid is in no shard, damaged, or of another size than its layout needs.
        """
        if grid_id not in self._panels:
            image = self.grids.read(grid_id)
            try:
                found = cut(image, str(self.grids.index.loc[grid_id, "layout"]))
            except DataError as error:
                raise DataError(f"grid {grid_id}: {error}") from None
            self._panels[grid_id] = found
            while len(self._panels) > self.cached_grids:
                self._panels.popitem(last=False)
        self._panels.move_to_end(grid_id)
        return self._panels[grid_id]

    def panel(self, ref: str) -> Image:
        """One panel.

        Raises:
            DataError: when the reference is none, or names a panel that its grid does not have.
        """
        grid_id, number = parse_ref(ref)
        panels = self.panels(grid_id)
        if number >= len(panels):
            raise DataError(f"{ref}: grid {grid_id} has {len(panels)} panels, numbered from 0")
        return panels[number]
