"""Contact sheets: many images in one, small enough for an event log."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

PREVIEW_BYTES = 48 * 1024  # one megabyte of metadata costs Dagster's event log four
GAP = 4  # pixels between pictures
FONT, LINE = 12, 15  # pixels: of a caption's letters, and from one of its lines to the next
LINES = 4  # of a caption
READABLE = 144  # pixels that a captioned cell is wide at least
INK = (32, 32, 36)


def draw_contact_sheet(
    pictures: Sequence[Image], columns: int, cell: int = 128, captions: Sequence[str] = (), title: str = ""
) -> Image:
    """Images row by row in cells of ``cell`` pixels on white. Each image keeps its proportions.

    Args:
        captions: texts below the images, wrapped to at most :data:`LINES` lines.
        title: text above all images, wrapped to any number of lines.

    Raises:
        ValueError: if there is no image, or the number of captions differs.
    """
    from PIL import Image as pil
    from PIL import ImageDraw, ImageFont, ImageOps

    if not pictures or (captions and len(captions) != len(pictures)):
        raise ValueError(f"a contact sheet of {len(pictures)} pictures and {len(captions)} captions")
    font = ImageFont.load_default(FONT)
    cell = max(cell, READABLE) if captions else cell
    columns = min(columns, len(pictures))
    width = columns * (cell + GAP) - GAP
    fitted = [ImageOps.contain(picture, (cell, cell)) for picture in pictures]
    texts = [
        _wrap_lines(text, lambda line: font.getlength(line) <= cell, LINES) for text in captions or [""] * len(fitted)
    ]
    head = _wrap_lines(title, lambda line: font.getlength(line) <= width)
    rows = [range(start, min(start + columns, len(fitted))) for start in range(0, len(fitted), columns)]
    heights = [max(fitted[n].height for n in row) + LINE * max(len(texts[n]) for n in row) for row in rows]
    sheet = pil.new("RGB", (width, LINE * len(head) + sum(heights) + GAP * (len(rows) - 1)), "white")
    draw, top = ImageDraw.Draw(sheet), LINE * len(head)
    for number, line in enumerate(head):
        draw.text((0, LINE * number), line, INK, font)
    for row, height in zip(rows, heights, strict=True):
        for place, n in enumerate(row):
            left, below = place * (cell + GAP), top + max(fitted[m].height for m in row)
            sheet.paste(fitted[n], (left, top))
            for number, line in enumerate(texts[n]):
                draw.text((left, below + LINE * number), line, INK, font)
        top += height + GAP
    return sheet


def tile_images(pictures: Sequence[Image], columns: int) -> Image:
    """Images without margins, row by row on white. Each cell has the size of the largest image."""
    from PIL import Image as pil

    columns = min(columns, len(pictures))
    width, height = max(p.width for p in pictures), max(p.height for p in pictures)
    sheet = pil.new("RGB", (columns * width, -(-len(pictures) // columns) * height), "white")
    for place, picture in enumerate(pictures):
        sheet.paste(picture, (place % columns * width, place // columns * height))
    return sheet


def _wrap_lines(text: str, fits: Callable[[str], bool], most: int | None = None) -> list[str]:
    """The text in lines that fit, at most ``most``. Existing line breaks stay, and the rest of the text is cut."""
    lines: list[str] = []
    for line in text.splitlines():
        lines.append("")
        for word in line.split():
            longer = f"{lines[-1]} {word}".strip()
            lines[-1:] = [longer] if fits(longer) or not lines[-1] else [lines[-1], word]
    if most is not None and len(lines) > most:
        lines[most - 1 :] = [" ".join(lines[most - 1 :])]
    return [_shorten(line, fits) for line in lines]


def _shorten(text: str, fits: Callable[[str], bool]) -> str:
    """The text, or its beginning with an ellipsis if it does not fit."""
    if fits(text):
        return text
    return next((text[:end] + "…" for end in range(len(text), 0, -1) if fits(text[:end] + "…")), "")


def preview_markdown(image: Image, alt: str) -> str:
    """An image as a Markdown data URL of at most :data:`PREVIEW_BYTES`, shrunk until it fits."""
    while True:
        buffer = io.BytesIO()
        image.save(buffer, format="WEBP", quality=80)
        text = f"![{alt}](data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()})"
        if len(text) <= PREVIEW_BYTES:
            return text
        image = image.resize((max(1, image.width * 3 // 4), max(1, image.height * 3 // 4)))
