"""Cut a picture that holds a grid of panels into its panels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paco_core.data.records.prompt_text import parse_layout
from paco_core.io.files import DataError

if TYPE_CHECKING:
    from PIL.Image import Image


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
