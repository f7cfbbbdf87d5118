"""How the page of ``paco play`` shows a story, in a real browser: what draws it, with answers that a server gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

import paco_core
from paco_core.io.shards import encode_png
from tests.support.chromium import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = pytest.mark.thorough
PACKAGE = Path(paco_core.__file__).parent
FILES, STYLE = PACKAGE / "operations" / "play" / "page", next(PACKAGE.rglob("base.css"))
WHERE = "http://play.test"
TYPES = {".css": "text/css", ".js": "text/javascript"}


def result(painted: int) -> dict[str, Any]:
    """A story of 2x3 panels by two painters, so many of which are done."""
    painters = [{"name": name, "trained": name != "base", "story": True} for name in ("base", "klein")]
    pictures = [
        {"by": one["name"], "seed": 0, "trained": one["trained"], "picture": "whole", "width": 192, "height": 128,
         "panels": [f"panel-{number}" for number in range(6)], "score": 0.5, "cause": None}
        for one in painters[:painted]
    ]  # fmt: skip
    return {
        "prompt": "a cat", "theme": "a cat", "seeds": 1, "layout": "2x3", "columns": 3, "cut": None, "judge": True,
        "painters": painters, "pictures": pictures,
    }  # fmt: skip


def document(painted: int) -> str:
    """The page's own document, with what a request has found so far in the place of its sections."""
    head, _, body = (FILES / "index.html").read_text().partition("<body>")
    head, dialogs = head.replace('src="/page/play.js"', ""), body[body.index("<dialog") : body.index("</body>")]
    how = '{ noun: "set", measured: "consistency", actions: () => [] }'
    return f"""{head}<body style="display: block; margin: 14px"><div id="found"></div>{dialogs}<script type="module">
        import {{ draw }} from "/page/painted.js";
        draw(document.getElementById("found"), {json.dumps(result(painted))}, {{ seeds: 1 }}, false, {how});
        document.body.id = "drawn";</script></body></html>"""


def answer(route: Route) -> None:
    path = route.request.url.removeprefix(WHERE)
    if path.startswith("/pictures/"):
        return route.fulfill(body=encode_png(Image.new("RGB", (64, 64), "red")), content_type="image/png")
    if path.startswith("/after-"):
        return route.fulfill(body=document(int(path[-1])), content_type="text/html")
    file = STYLE if path.endswith("base.css") else FILES / path.rpartition("/")[2]
    if not file.is_file():
        return route.fulfill(status=404)
    return route.fulfill(body=file.read_bytes(), content_type=TYPES[file.suffix])


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with chromium() as browser:
        tab = browser.new_page()
        tab.set_default_timeout(120_000)
        tab.route("**/*", answer)
        yield tab


def places(page: Page, width: int, painted: int) -> list[list[tuple[float, float, float]]]:
    """(Left, top, width) of each cell of each strip, in whole pixels, in the order of the document."""
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{WHERE}/after-{painted}")
    page.wait_for_selector("#drawn")
    page.wait_for_function("[...document.images].every(image => image.complete)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing is wider than the screen"
    script = """strips => strips.map(strip => [...strip.querySelector(".panels").children].map(cell => {
        const box = cell.getBoundingClientRect();
        return [box.left, box.top, box.width].map(Math.round); }))"""
    found: list[list[tuple[float, float, float]]] = page.locator(".strip").evaluate_all(script)
    return found


def test_a_story_is_one_row_and_on_a_narrow_screen_several(page: Page) -> None:
    wide, narrow = places(page, 1280, 2), places(page, 400, 2)
    for strip in (*wide, *narrow):
        assert len(strip) == 6 and sorted(strip, key=lambda cell: (cell[1], cell[0])) == strip, "in reading order"
    assert all(len({top for _, top, _ in strip}) == 1 for strip in wide)
    assert all(len({top for _, top, _ in strip}) == 2 and min(w for *_, w in strip) >= 96 for strip in narrow)
    names = page.locator(".strip .panels button").evaluate_all("all => all.slice(0, 6).map(one => one.title)")
    assert [f"panel {number}" in name for number, name in enumerate(names, start=1)] == [True] * 6


@pytest.mark.parametrize("width", [1280, 400])
def test_a_story_takes_the_place_that_waited_for_it(page: Page, width: int) -> None:
    """Before the first one is painted, and before the second is."""
    waiting, half, painted = (places(page, width, count) for count in (0, 1, 2))
    cells = [[(left, side) for left, _, side in strip] for strip in painted]
    for before in (waiting, half):
        assert [[(left, side) for left, _, side in strip] for strip in before] == cells
