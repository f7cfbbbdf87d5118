"""Pictures for pages: whole, in order, and small."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image

from paco_core.io.contact_sheet import GAP, LINE, LINES, PREVIEW_BYTES, READABLE, contact_sheet, preview_markdown, tiled


def test_pictures_lie_row_by_row_in_their_proportions() -> None:
    red, blue, wide = Image.new("RGB", (64, 64), "red"), Image.new("RGB", (64, 64), "blue"), Image.new("RGB", (64, 32))
    sheet = contact_sheet([red, blue, wide], columns=2, cell=32)
    step = 32 + GAP
    assert sheet.size == (2 * step - GAP, step + 16)
    assert [sheet.getpixel(p) for p in ((5, 5), (step + 5, 5), (5, step + 5))] == [(255, 0, 0), (0, 0, 255), (0, 0, 0)]
    assert sheet.getpixel((step + 5, step + 5)) == (255, 255, 255)
    assert contact_sheet([red], columns=6, cell=32).size == (32, 32)
    with pytest.raises(ValueError, match="of 0 pictures"):
        contact_sheet([], columns=2)


def test_tiles_lie_edge_to_edge_in_cells_as_large_as_the_largest() -> None:
    red, blue = Image.new("RGB", (64, 64), "red"), Image.new("RGB", (32, 48), "blue")
    page = tiled([red, blue, red], columns=2)
    assert page.size == (128, 128)
    assert [page.getpixel(p) for p in ((63, 63), (64, 0), (95, 47), (0, 64))] == [
        (255, 0, 0), (0, 0, 255), (0, 0, 255), (255, 0, 0),
    ]  # fmt: skip
    assert page.getpixel((96, 0)) == page.getpixel((64, 64)) == (255, 255, 255)
    assert tiled([blue], columns=8).size == blue.size


def ink(sheet: Image.Image, box: tuple[int, int, int, int]) -> int:
    """Dark pixels of a part of a sheet."""
    return sum(sheet.convert("L").crop(box).histogram()[:128])


def test_captions_stand_below_their_pictures_and_the_title_above_all() -> None:
    blank = [Image.new("RGB", (64, 64), "white")] * 3
    sheet = contact_sheet(blank, 2, 64, ["one\nseed 0", "a caption " * 20, "three"], "the title " * 12)
    step = READABLE + GAP
    head = sheet.height - 2 * READABLE - (LINES + 1) * LINE - GAP
    assert sheet.width == 2 * step - GAP and head >= 2 * LINE and head % LINE == 0, "titles take several lines"
    assert ink(sheet, (0, 0, sheet.width, LINE)) and ink(sheet, (0, head - LINE, sheet.width, head))
    assert not ink(sheet, (0, head, sheet.width, head + READABLE)), "no text covers a picture"
    captions = head + READABLE
    for left in (0, step):
        assert ink(sheet, (left, captions, left + READABLE, captions + LINE))
    assert ink(sheet, (0, captions + LINE, READABLE, captions + 2 * LINE)), "the second line"
    assert not ink(sheet, (0, captions + 2 * LINE, READABLE, captions + LINES * LINE)), "it has two lines"
    for line in range(LINES):
        assert ink(sheet, (step, captions + line * LINE, sheet.width, captions + (line + 1) * LINE)), "broken in lines"
    assert not ink(sheet, (READABLE, captions, step, captions + LINE)), "nothing stands between the cells"
    with pytest.raises(ValueError, match="3 pictures and 1 captions"):
        contact_sheet(blank, 2, captions=["one"])


def test_a_preview_fits_the_event_log_whatever_it_shows() -> None:
    noise = Image.effect_noise((1024, 1024), 90).convert("RGB")
    text = preview_markdown(noise, "grid")
    assert text.startswith("![grid](data:image/webp;base64,") and len(text) <= PREVIEW_BYTES
    shown = Image.open(io.BytesIO(base64.b64decode(text.split("base64,")[1].rstrip(")"))))
    assert shown.width == shown.height > 100
