"""`paco play` as a person uses it, in a real browser, in a project that has run; and how it begins and ends."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.support.play_page import PATIENCE_S, Play, expect, finished, open_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1200)]
SCORE = re.compile(r"^[01]\.\d{3}$")


@pytest.fixture
def page(smoke: Path) -> Iterator[Page]:
    """A fresh tab, in which nothing may go wrong that the test does not expect."""
    with open_page(smoke) as tab:
        yield tab


def write(page: Page, *, sets: str = "1") -> None:
    """A theme and four panels, at the small size."""
    page.fill("#theme", "a red cat in many places")
    for number, place in enumerate(("at night", "in the snow", "on the beach", "in the city")):
        page.locator("#panels textarea").nth(number).fill(f"a small red cat {place}, flat style.")
    page.select_option("#paint-seeds", sets)
    page.select_option("#paint-size", "64")


def test_a_person_paints_and_sees_base_and_trained_with_scores(page: Page) -> None:
    expect(page.locator("#paint .empty")).to_contain_text("No images yet")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#paint .fault")).to_have_text("Write a theme: what all panels are about.")
    write(page, sets="2")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#paint button.main")).to_be_disabled()
    finished(page, "paint")
    assert page.locator("#paint figure .name").all_inner_texts() == [
        "base set 1", "flux_t2is set 1", "base set 2", "flux_t2is set 2",
    ]  # fmt: skip
    scores = page.locator("#paint figcaption .score").all_inner_texts()
    assert len(scores) == 4 and all(SCORE.match(score) for score in scores)
    assert page.locator("#paint .means .who .score").count() == 2 and page.locator("#paint .panels img").count() == 16
    expect(page.locator("#paint .panels img.small")).to_have_count(16)
    widths = page.locator("#paint figcaption .bar i").evaluate_all("bars => bars.map(bar => bar.style.width)")
    assert [float(width.rstrip("%")) / 100 for width in widths] == pytest.approx(
        [float(score) for score in scores], abs=6e-4
    )
    page.reload()
    expect(page.locator("#paint figcaption .score")).to_have_count(4)  # a reload loses nothing

    page.get_by_role("button", name="Score its panels").last.click()
    finished(page, "score")
    assert page.locator("#score-theme").input_value() == "a red cat in many places"
    assert page.locator("#score .pair .score").count() == 6


@pytest.mark.parametrize(("by", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_ends_in_the_middle_of_its_work_and_leaves_nothing(smoke: Path, by: signal.Signals, code: int) -> None:
    play = Play(smoke)
    panels = ["at night", "in the snow", "on the beach", "in the city"]
    body = {"theme": "a red cat", "panels": panels, "policy": "flux_t2is", "seeds": 8}
    with httpx.Client(base_url=play.address, timeout=PATIENCE_S) as client:
        job = client.post("/paint", json=body).json()["job"]
        while client.get(f"/jobs/{job}").json()["done"] == 0:
            pass
    returned, output = play.end(by)
    assert returned == code and "Traceback" not in output, output
    with pytest.raises(httpx.TransportError):
        httpx.get(play.address)
