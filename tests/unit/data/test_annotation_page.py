"""The annotation page in a real browser: Debian's chromium without a window, driven by playwright."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from paco_core.data.annotation import assignment
from paco_core.data.annotation.store import AnswerStore
from tests.support.annotation_world import STORE, Server, make_world
from tests.support.chromium import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


class Annotator:
    """One tab, and what the test knows to be on it."""

    def __init__(self, browser: Browser, link: str, width: int = 1280, height: int = 800) -> None:
        self.page: Page = browser.new_context(viewport={"width": width, "height": height}).new_page()
        self.page.set_default_timeout(60_000)
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)
        self.page.goto(link)

    def wait(self, count: str) -> None:
        """Until the progress reads so: the server has confirmed what came before."""
        self.expect("#count", re.compile(f"^{count}$"))

    def expect(self, selector: str, text: re.Pattern[str]) -> None:
        """Polls: the page's own policy forbids the evaluation that ``wait_for_function`` needs."""
        from playwright.sync_api import expect

        expect(self.page.locator(selector)).to_have_text(text, timeout=60_000)

    def instance(self) -> str:
        source = self.page.locator("#reference img").get_attribute("src")
        assert source is not None
        return source.split("/")[-2]

    def badges(self) -> list[str]:
        return self.page.locator(".candidate .rank").all_inner_texts()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)


@pytest.mark.slow
def test_a_person_ranks_ten_instances(tmp_path: Path) -> None:
    make_world(tmp_path)
    expected_rankings: dict[str, tuple[int, ...] | str] = {}
    with Server(tmp_path, ("--instances", "10")) as server, chromium() as browser:
        annotator = Annotator(browser, server.links[0])
        annotator.wait("0 of 10")
        annotator.page.wait_for_load_state("networkidle")
        assert annotator.page.evaluate("[...document.images].map(image => image.naturalWidth)") == [32] * 5
        assert annotator.page.locator(".candidate").count() == 4 and annotator.page.locator("#confirm").is_disabled()

        # 1, by mouse, with a change of mind on the way; the last candidate falls into its place by itself.
        for place in (2, 0, 0, 3, 1):
            annotator.page.locator(".candidate").nth(place).click()
        assert annotator.badges() == ["4th", "3rd", "1st", "2nd"]
        expected_rankings[annotator.instance()] = (2, 3, 1, 0)
        annotator.page.locator("#confirm").click()
        annotator.wait("1 of 10")

        # 2, by keyboard, with keys that do nothing, say what is missing, or take back.
        annotator.press("9", "4", "2", "Backspace", "Enter")
        annotator.expect("#status", re.compile("^Nothing is stored yet: 1 of 4 candidates are ranked.$"))
        annotator.press("1", "2", "3")
        assert annotator.badges() == ["2nd", "3rd", "4th", "1st"]
        expected_rankings[annotator.instance()] = (3, 0, 1, 2)
        annotator.press("Enter")
        annotator.wait("2 of 10")

        # Undo brings the second back as it was ranked; it is ranked otherwise now.
        second = annotator.instance()
        annotator.press("u")
        annotator.wait("1 of 10")
        assert annotator.instance() != second and annotator.badges() == ["2nd", "3rd", "4th", "1st"]
        expected_rankings[annotator.instance()] = (0, 2, 1, 3)
        annotator.press("Backspace", "Backspace", "Backspace", "1", "3", "2", "Enter")
        annotator.wait("2 of 10")

        # 3 is skipped and 4 cannot be told; a reload changes nothing but an unconfirmed choice.
        skipped = annotator.instance()
        annotator.press("s")
        annotator.wait("2 of 10, 1 skipped")
        expected_rankings[annotator.instance()] = "cannot_tell"
        annotator.press("t")
        annotator.wait("3 of 10, 1 skipped")
        before = annotator.instance()
        annotator.press("2")
        annotator.page.reload()
        annotator.wait("3 of 10, 1 skipped")
        assert annotator.instance() == before and annotator.badges() == [""] * 4

        # 5, with the server gone: the choice waits on the page, also over a reload, until there is a server.
        server.kill()
        annotator.press("4", "3", "2", "Enter")
        expected_rankings[before] = (3, 2, 1, 0)
        annotator.expect("#status", re.compile("^No answer"))
        assert annotator.page.locator("#confirm").is_disabled()
        server.start()
        annotator.wait("4 of 10, 1 skipped")
        network_errors = (
            "ERR_CONNECTION",
            "ERR_EMPTY",
            "ERR_CONTENT_LENGTH",
        )  # killed before, or in the middle of, an answer
        assert not [error for error in annotator.errors if not any(code in error for code in network_errors)]

        # The rest; the skipped one comes last, and says so.
        for num_ranked in range(4, 9):
            assert annotator.instance() != skipped
            expected_rankings[annotator.instance()] = (1, 0, 2, 3)
            annotator.press("2", "1", "3", "Enter")
            annotator.wait(f"{num_ranked + 1} of 10, 1 skipped")
        assert annotator.instance() == skipped and "skipped this one before" in annotator.page.inner_text("#status")
        expected_rankings[skipped] = (0, 1, 2, 3)
        annotator.press("1", "2", "3", "Enter")
        annotator.page.wait_for_selector("#end:not([hidden])")

    store = AnswerStore(tmp_path / STORE)
    (person,) = store.annotators()
    latest = {answer.instance_id: answer for answer in store.latest()}
    assert latest.keys() == expected_rankings.keys() and len(latest) == 10
    for instance, choice in expected_rankings.items():
        order = assignment.candidate_order(person.token, instance, 4)
        expected = None if isinstance(choice, str) else tuple(order[place] for place in choice)
        assert latest[instance].ranking == expected
        assert latest[instance].verdict == (choice if isinstance(choice, str) else "ranked")
    assert len(store.every()) == 10 + 2 + 1  # the undo and what followed it, and the skip


#: The boxes of the candidates, the top of the buttons below them, and the width that the content needs.
BOXES = """({
    candidates: [...document.querySelectorAll(".candidate")].map((button) => button.getBoundingClientRect().toJSON()),
    buttons: document.getElementById("actions").getBoundingClientRect().top,
    needed: document.documentElement.scrollWidth,
})"""


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_images_of_a_prompt_fit_into_the_window(tmp_path: Path, width: int, height: int) -> None:
    folder = tmp_path / "images"
    counts = (2, 3, 4, 6)
    for count in counts:
        (folder / str(count)).mkdir(parents=True)
        (folder / str(count) / "prompt.txt").write_text("a small fox in a misty forest " * (30 if count == 3 else 1))
        for number in range(count):
            Image.new("RGB", (40 * count, 90), (40 * number, 40 * count, 90)).save(folder / f"{count}/{number}.png")
    with Server(tmp_path, ("--pictures", "images")) as server, chromium() as browser:
        annotator = Annotator(browser, server.links[0], width, height)
        page, sizes = annotator.page, set()
        for skipped in range(len(counts)):
            annotator.wait("0 of 4" + (f", {skipped} skipped" if skipped else ""))
            page.wait_for_load_state("networkidle")
            boxes = page.evaluate(BOXES)
            assert all(box["left"] >= 0 and box["right"] <= width for box in boxes["candidates"])
            assert all(box["top"] > 0 and box["bottom"] <= boxes["buttons"] for box in boxes["candidates"])
            sizes.add(len(boxes["candidates"]))
            side = boxes["candidates"][0]["width"]
            page.locator("#larger").click()
            boxes = page.evaluate(BOXES)
            assert boxes["needed"] == width and all(box["left"] >= 0 for box in boxes["candidates"])
            assert boxes["candidates"][0]["width"] >= side
            page.locator("#larger").click()
            assert page.evaluate(BOXES)["candidates"][0]["width"] == side
            annotator.press("s")
        assert sizes == set(counts) and annotator.errors == []
