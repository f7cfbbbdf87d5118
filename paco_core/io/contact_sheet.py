"""Pictures for a person at a glance: many as one sheet, small enough for an event log."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

PREVIEW_BYTES = 48 * 1024  # one megabyte of metadata costs Dagster's event log four
GAP = 4  # pixels between pictures


def contact_sheet(pictures: Sequence[Image], columns: int, cell: int = 128) -> Image:
    """Pictures row by row in cells of ``cell`` pixels on white; each fills its cell in its proportions.

    Raises:
        ValueError: without any picture.
    """
    from PIL import Image as pil
    from PIL import ImageOps

    if not pictures:
        raise ValueError("a contact sheet needs a picture")
    columns = min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    step = cell + GAP
    sheet = pil.new("RGB", (columns * step - GAP, rows * step - GAP), "white")
    for place, picture in enumerate(pictures):
        fitted = ImageOps.contain(picture, (cell, cell))
        sheet.paste(fitted, (place % columns * step, place // columns * step))
    return sheet


def preview_markdown(image: Image, alt: str) -> str:
    """A picture as a Markdown data URL of at most :data:`PREVIEW_BYTES`, shrunk until it fits."""
    while True:
        buffer = io.BytesIO()
        image.save(buffer, format="WEBP", quality=80)
        text = f"![{alt}](data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()})"
        if len(text) <= PREVIEW_BYTES:
            return text
        image = image.resize((max(1, image.width * 3 // 4), max(1, image.height * 3 // 4)))
