"""Pictures for pages: whole, in order, and small."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image

from paco_core.io.contact_sheet import GAP, PREVIEW_BYTES, draw_contact_sheet, preview_markdown, tile_images


def test_pictures_lie_row_by_row_in_their_proportions() -> None:
    red, blue, wide = Image.new("RGB", (64, 64), "red"), Image.new("RGB", (64, 64), "blue"), Image.new("RGB", (64, 32))
    sheet = draw_contact_sheet([red, blue, wide], columns=2, cell=32)
    step = 32 + GAP
    assert sheet.size == (2 * step - GAP, step + 16)
    assert [sheet.getpixel(p) for p in ((5, 5), (step + 5, 5), (5, step + 5))] == [(255, 0, 0), (0, 0, 255), (0, 0, 0)]
    assert sheet.getpixel((step + 5, step + 5)) == (255, 255, 255)
    with pytest.raises(ValueError, match="captions"):
        draw_contact_sheet([red, blue, wide], 2, captions=["one"])


def test_tiles_lie_edge_to_edge_in_cells_as_large_as_the_largest() -> None:
    red, blue = Image.new("RGB", (64, 64), "red"), Image.new("RGB", (32, 48), "blue")
    page = tile_images([red, blue, red], columns=2)
    assert page.size == (128, 128)
    assert [page.getpixel(p) for p in ((63, 63), (64, 0), (95, 47), (0, 64))] == [
        (255, 0, 0), (0, 0, 255), (0, 0, 255), (255, 0, 0),
    ]  # fmt: skip
    assert page.getpixel((96, 0)) == page.getpixel((64, 64)) == (255, 255, 255)
    assert tile_images([blue], columns=8).size == blue.size


def test_a_preview_fits_the_event_log_whatever_it_shows() -> None:
    noise = Image.effect_noise((1024, 1024), 90).convert("RGB")
    text = preview_markdown(noise, "grid")
    assert text.startswith("![grid](data:image/webp;base64,") and len(text) <= PREVIEW_BYTES
    sheet = Image.open(io.BytesIO(base64.b64decode(text.split("base64,")[1].rstrip(")"))))
    assert sheet.width == sheet.height > 100
