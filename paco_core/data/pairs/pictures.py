"""Pictures of pairs that are not panels of the grids, in a shard below ``data/pairs``."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.data.records.records import panel_ref
from paco_core.io.files import md5_of
from paco_core.io.shards import encode_png, write_shard

if TYPE_CHECKING:
    from PIL.Image import Image

LAYOUT = "1x1"  # each picture is a grid of one panel


@dataclass
class PairPictures:
    """Pictures and their index rows, by id. Equal pixels have one id."""

    pngs: dict[str, bytes] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, image: Image, prompt_id: str) -> str:
        """Add a picture and return its id.

        Args:
            prompt_id: the prompt that a split never divides; ``{}`` in it is replaced by the id of the picture.
        """
        png = encode_png(image)
        md5 = md5_of(png)
        name = md5[:16]
        if name not in self.pngs:
            self.pngs[name] = png
            self.rows[name] = {
                "id": name,
                "prompt_id": prompt_id.format(name),
                "seed": 0,
                "layout": LAYOUT,
                "height": image.height,
                "width": image.width,
                "md5": md5,
            }
        return name

    def add_panel(self, image: Image, prompt_id: str) -> str:
        """:meth:`add`, but returns the reference to the only panel of the picture."""
        return panel_ref(self.add(image, prompt_id), 0)

    def write(self, folder: Path, elsewhere: Set[str] = frozenset()) -> None:
        """Write the pictures as a shard.

        Args:
            elsewhere: ids of pictures in other shards; they are not written again, because a picture is in one shard
                only. If no picture remains, no shard is written.
        """
        if rows := [row for name, row in self.rows.items() if name not in elsewhere]:
            write_shard(folder, rows, self.pngs)

    @property
    def md5s(self) -> dict[str, str]:
        """Picture id -> MD5 as encoded."""
        return {name: row["md5"] for name, row in self.rows.items()}
