"""Generated parts of the docs are up to date: the drawing of the graph, the published tables, the images."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import drawings
import tables


def test_the_drawing_of_the_graph_is_up_to_date(repository: Path) -> None:
    drawing = (repository / drawings.GRAPH).read_text()
    assert drawing == drawings.graph(), "run `python tools/docs/drawings.py`"
    root = ET.fromstring(drawing)
    width, height = (float(root.get(side, "0")) for side in ("width", "height"))
    for words in root.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 < float(words.get("x", "-1")) < width and 0 < float(words.get("y", "-1")) < height, words.text


def test_every_picture_is_small_and_shown_on_a_page(repository: Path) -> None:
    pages = "".join(path.read_text() for path in [repository / "README.md", *(repository / "docs").rglob("*.md")])
    for picture in (repository / drawings.IMAGES).iterdir():
        assert f"images/{picture.name})" in pages, f"{picture.name} is on no page"
        assert picture.stat().st_size < 400_000


def test_the_page_of_published_tables_is_up_to_date(repository: Path) -> None:
    assert (repository / tables.PAGE).read_text() == tables.page(), "run `python tools/docs/tables.py`"
