"""A picture that holds a grid of panels: how large it is, and how it is cut into them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from paco_core.data.records.prompt_text import parse_layout
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
