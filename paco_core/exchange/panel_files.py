"""Panels as loose PNG files, the way public data sets ship them: written once each, checked before they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.io.files import inside, md5_of
from paco_core.io.pictures import decode_image, read_encoded
from paco_core.io.shards import encode_png, write_shard

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass
class PanelWriter:
    """Writes each panel once, under ``folder``."""

    folder: Path
    panel: Callable[[str], Image]
    written: set[str] = field(default_factory=set)

    def write(self, ref: str, name: str) -> str:
        """Write all images as one shard.

        Raises:
            DataError: when the name leads out of the folder.
        """
        if name not in self.written:
            path = inside(self.folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode_png(self.panel(ref)))
            self.written.add(name)
        return name


@dataclass
class PictureFiles(Mapping[str, bytes]):
    """Image files that become a shard, with ids by content. Images are read one at a time."""

    paths: dict[str, Path] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    _names: dict[Path, str] = field(default_factory=dict)

    def add(self, path: Path, prompt_id: str) -> str:
        """Add an image; returns its id.

        Raises:
            DataError: if the file is missing, empty, too large or not an image.
        """
        if path not in self._names:
            png, (width, height) = self._png(path)
            md5 = md5_of(png)
            name = md5[:16]
            self._names[path] = name
            self.paths.setdefault(name, path)
            row = {"id": name, "prompt_id": prompt_id, "seed": 0, "layout": "1x1", "height": height}
            self.rows.setdefault(name, {**row, "width": width, "md5": md5})
        return self._names[path]

    @staticmethod
    def _png(path: Path) -> tuple[bytes, tuple[int, int]]:
        """The image as PNG, its width and its height. A plain PNG stays unchanged.

        The image is decoded in each case, to detect damage.
        """
        encoded = read_encoded(path)
        image = decode_image(encoded.data, str(path))
        return encoded.data if encoded.plain else encode_png(image), image.size

    def __getitem__(self, name: str) -> bytes:
        return self._png(self.paths[name])[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def write(self, folder: Path) -> None:
        """Write all pictures as one shard."""
        write_shard(folder, list(self.rows.values()), self)
