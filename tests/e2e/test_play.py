"""`paco play` as a person uses it, in a real browser, in a project that has run; and how it begins and ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from PIL import Image

from paco_core.io.shards import encode_png
from tests.support.chromium import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1200)]
PATIENCE_S = 300.0
SCORE = re.compile(r"^[01]\.\d{3}$")


class Play:
    """``paco play`` in a process of its own."""

    def __init__(self, root: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "paco_core", "play", "--no-open", "--port", "0", *arguments]
        env = {**os.environ, "PYTHONPATH": str(root)}
        self.process = subprocess.Popen(
            command, cwd=root, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        found = re.fullmatch(r"paco play: (http://127\.0\.0\.1:\d+)\n", said)
        assert found, said + self.process.stdout.read()
        self.address = found[1]

    def end(self, by: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(by)
        said, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, said


@pytest.fixture(scope="module")
def play(smoke: Path) -> Iterator[Play]:
    made = Play(smoke)
    try:
        yield made
    finally:
        made.end(signal.SIGTERM)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, play: Play) -> Iterator[Page]:
    """A fresh tab, in which nothing may go wrong that the test does not expect."""
    with browser.new_context(viewport={"width": 1500, "height": 1000}) as context:
        tab = context.new_page()
        tab.set_default_timeout(PATIENCE_S * 1000)
        errors: list[str] = []
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
        tab.goto(play.address)
        tab.wait_for_selector("#paint-policy:not([disabled])")
        yield tab
        assert [error for error in errors if "status of 422" not in error] == []


def expect(found: Locator) -> Any:
    from playwright.sync_api import expect as expected

    expected.set_options(timeout=PATIENCE_S * 1000)
    return expected(found)


def finished(page: Page, section: str) -> None:
    expect(page.locator(f"#{section} .found")).to_have_attribute("aria-busy", "false")


def write(page: Page, *, sets: str = "1") -> None:
    """A theme and four panels, at the small size."""
    page.fill("#theme", "a red cat in many places")
    for number, where in enumerate(("at night", "in the snow", "on the beach", "in the city")):
        page.locator("#panels textarea").nth(number).fill(f"a small red cat {where}, flat style.")
    page.select_option("#paint-seeds", sets)
    page.select_option("#paint-size", "64")


def files(*colours: str) -> list[dict[str, Any]]:
    return [
        {"name": f"{colour}.png", "mimeType": "image/png", "buffer": encode_png(Image.new("RGB", (64, 64), colour))}
        for colour in colours
    ]


DROP = """([target, type, base64]) => {
    const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
    const data = new DataTransfer();
    data.items.add(new File([bytes], "dropped.png", { type }));
    const event = (name) => new DragEvent(name, { dataTransfer: data, bubbles: true, cancelable: true });
    for (const name of ["dragenter", "dragover", "drop"]) document.querySelector(target).dispatchEvent(event(name));
}"""


def drop(page: Page, target: str, data: bytes) -> None:
    """A file that is dragged in from outside, as the browser says it to the page."""
    from base64 import b64encode

    page.evaluate(DROP, [target, "image/png", b64encode(data).decode()])


def test_a_person_paints_and_sees_base_and_trained_with_scores(page: Page) -> None:
    expect(page.locator("#paint .empty")).to_contain_text("Nothing painted yet")
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

    # A panel is seen large, and sent on.
    page.locator("#paint .trained .panels button").first.click()
    expect(page.locator("#viewer-title")).to_have_text("flux_t2is, set 1, panel 1")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#viewer-title")).to_have_text("flux_t2is, set 1, panel 2")
    page.keyboard.press("Escape")
    expect(page.locator("#viewer")).to_be_hidden()
    panel = page.locator("#paint .panels button").first
    panel.drag_to(page.locator("#paint h1"))  # let go where it came from: nothing
    expect(page.locator("#tab-paint")).to_have_attribute("aria-selected", "true")
    panel.drag_to(page.locator("#tab-score"))
    expect(page.locator("#tray li")).to_have_count(1)
    page.locator("#tab-paint").click()
    page.locator("#paint .panels button").nth(1).click()
    page.keyboard.press("s")
    expect(page.locator("#tray li")).to_have_count(2)
    page.locator("#tab-paint").click()
    page.get_by_role("button", name="Score its panels").last.click()
    finished(page, "score")
    assert page.locator("#score-theme").input_value() == "a red cat in many places"
    assert page.locator("#score .pair .score").count() == 6 and page.locator("#tray li").count() == 4


def test_pictures_that_are_added_are_scored_with_reasons(page: Page) -> None:
    page.keyboard.press("2")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#score .fault")).to_have_text("Add at least two pictures.")
    page.set_input_files("#score-files", files("red", "green"))  # type: ignore[arg-type]
    expect(page.locator("#tray li")).to_have_count(2)
    drop(page, "#score-drop", encode_png(Image.new("RGB", (64, 64), "blue")))
    expect(page.locator("#tray li")).to_have_count(3)
    page.keyboard.press("Control+Enter")
    finished(page, "score")
    pairs = page.locator("#score .pair")
    assert pairs.count() == 3 and all(SCORE.match(text) for text in pairs.locator(".score").all_inner_texts())
    assert all(len(reasons) > 2 for reasons in pairs.locator("p").all_inner_texts())
    assert [text[:3] for text in pairs.locator(".letter").all_inner_texts()] == ["A", "B", "A", "C", "B", "C"]
    assert SCORE.match(page.locator("#score .means .score").inner_text())

    # What is no picture is refused with its name, and nothing else is lost.
    drop(page, "#tab-score", b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>")
    expect(page.locator("#score .fault")).to_contain_text(
        "dropped.png was not taken: not a readable picture: not one of PNG"
    )
    assert page.locator("#tray li").count() == 3
    page.locator("#tray .away").first.click()
    assert page.locator("#tray li").count() == 2


def test_a_picture_is_edited(page: Page) -> None:
    page.keyboard.press("3")
    example = page.locator("#edit-examples button").first
    example.click()
    assert page.locator("#instruction").input_value() in example.inner_text()
    drop(page, "body", encode_png(Image.new("RGB", (64, 64), "red")))  # anywhere: it goes to what is open
    page.fill("#instruction", "Make the cat blue.")
    page.select_option("#edit-seeds", "1")
    page.get_by_role("button", name="Edit Ctrl Enter").click()
    finished(page, "edit")
    assert page.locator("#edit figure .name").all_inner_texts() == ["original", "base edit 1", "kontext_edit edit 1"]
    scores = page.locator("#edit figcaption .score").all_inner_texts()
    assert len(scores) == 2 and all(SCORE.match(score) for score in scores)


def test_a_page_that_lost_its_server_says_so_and_goes_on(browser: Browser, smoke: Path) -> None:
    made = Play(smoke)
    tab = browser.new_page()
    tab.set_default_timeout(PATIENCE_S * 1000)
    tab.goto(made.address)
    tab.wait_for_selector("#paint-policy:not([disabled])")
    made.process.kill()
    made.process.wait()
    write(tab)
    tab.keyboard.press("Control+Enter")
    expect(tab.locator("#paint .fault")).to_contain_text("No answer from paco play")
    expect(tab.locator("#paint button.main")).to_be_enabled()
    tab.close()


@pytest.mark.parametrize(("by", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_ends_in_the_middle_of_its_work_and_leaves_nothing(smoke: Path, by: signal.Signals, code: int) -> None:
    made = Play(smoke)
    panels = ["at night", "in the snow", "on the beach", "in the city"]
    body = {"theme": "a red cat", "panels": panels, "policy": "flux_t2is", "seeds": 8}
    with httpx.Client(base_url=made.address, timeout=PATIENCE_S) as client:
        job = client.post("/paint", json=body).json()["job"]
        while client.get(f"/jobs/{job}").json()["done"] == 0:
            pass
    returned, said = made.end(by)
    assert returned == code and "Traceback" not in said, said
    with pytest.raises(httpx.TransportError):
        httpx.get(made.address)
