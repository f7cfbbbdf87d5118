"""Pictures that a killed run of a benchmark had painted, so that the next one goes on behind them.

Pictures of one batch are kept and found together: beside other neighbours a picture may differ by rounding.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.data.grids.grids import Finished
from paco_core.io.files import digest
from paco_core.io.pictures import decode_image
from paco_core.io.shards import encode_png

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class PaintedBefore:
    """Batches of pictures in ``folder``, found again by what was asked of what.

    A batch depends on code and libraries (the folder is that of a stage's unfinished work), on what paints
    (``identity``), and on each of its pictures: one folder may keep the pictures of several painters.
    """

    folder: Path
    identity: str = ""

    def by(self, *identity: Any) -> PaintedBefore:
        """The same folder for another painter."""
        return PaintedBefore(self.folder, digest(list(identity), 32))

    def batch(self, asked: Sequence[Any], paint: Callable[[], Sequence[Image]]) -> Sequence[Image]:
        """The pictures of a batch, painted unless all of them are there.

        Args:
            asked: one entry a picture, with all that decides it beside the painter.
        """
        finished, key = Finished(self.folder), self.key(asked)
        names = [f"{key}-{number}" for number in range(len(asked))]
        if all(name in finished for name in names):
            return [decode_image(finished[name], name) for name in names]
        images = paint()
        for name, image in zip(names, images, strict=True):
            finished.save(name, encode_png(image))
        return images

    def key(self, asked: Sequence[Any]) -> str:
        """Holds ``identity`` and all that is ``asked``, in order: also what is painted beside a picture."""
        return digest([self.identity, *asked], 32)

    def forget(self) -> None:
        """Remove all pictures, once they lie in an out."""
        shutil.rmtree(self.folder, ignore_errors=True)
