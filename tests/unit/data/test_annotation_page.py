"""The annotation page in a real browser: Debian's chromium without a window, driven by playwright."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from paco_core.data.annotation import assignment
from paco_core.data.annotation.store import AnswerStore
from tests.support.annotation_world import STORE, Server, make_world
from tests.support.chromium import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


class Annotator:
    """One tab, and what the test knows to be on it."""

    def __init__(self, browser: Browser, link: str) -> None:
        self.page: Page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
        self.page.set_default_timeout(60_000)
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)
        self.page.goto(link)

    def wait(self, done: str) -> None:
        """Until the progress reads so: the server has confirmed what came before."""
        self.expect("#count", re.compile(f"^{done}$"))

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
    said: dict[str, tuple[int, ...] | str] = {}
    with Server(tmp_path, ("--instances", "10")) as server, chromium() as browser:
        who = Annotator(browser, server.links[0])
        who.wait("0 of 10")
        who.page.wait_for_load_state("networkidle")
        assert who.page.evaluate("[...document.images].map(image => image.naturalWidth)") == [32] * 5
        assert who.page.locator(".candidate").count() == 4 and who.page.locator("#confirm").is_disabled()

        # 1, by mouse, with a change of mind on the way; the last candidate falls into its place by itself.
        for place in (2, 0, 0, 3, 1):
            who.page.locator(".candidate").nth(place).click()
        assert who.badges() == ["4th", "3rd", "1st", "2nd"]
        said[who.instance()] = (2, 3, 1, 0)
        who.page.locator("#confirm").click()
        who.wait("1 of 10")

        # 2, by keyboard, with keys that do nothing, say what is missing, or take back.
        who.press("9", "4", "2", "Backspace", "Enter")
        who.expect("#status", re.compile("^Nothing is stored yet: 1 of 4 candidates are ranked.$"))
        who.press("1", "2", "3")
        assert who.badges() == ["2nd", "3rd", "4th", "1st"]
        said[who.instance()] = (3, 0, 1, 2)
        who.press("Enter")
        who.wait("2 of 10")

        # Undo brings the second back as it was ranked; it is ranked otherwise now.
        second = who.instance()
        who.press("u")
        who.wait("1 of 10")
        assert who.instance() != second and who.badges() == ["2nd", "3rd", "4th", "1st"]
        said[who.instance()] = (0, 2, 1, 3)
        who.press("Backspace", "Backspace", "Backspace", "1", "3", "2", "Enter")
        who.wait("2 of 10")

        # 3 is skipped and 4 cannot be told; a reload changes nothing but an unconfirmed choice.
        skipped = who.instance()
        who.press("s")
        who.wait("2 of 10, 1 skipped")
        said[who.instance()] = "cannot_tell"
        who.press("t")
        who.wait("3 of 10, 1 skipped")
        before = who.instance()
        who.press("2")
        who.page.reload()
        who.wait("3 of 10, 1 skipped")
        assert who.instance() == before and who.badges() == [""] * 4

        # 5, with the server gone: the choice waits on the page, also over a reload, until there is a server.
        server.kill()
        who.press("4", "3", "2", "Enter")
        said[before] = (3, 2, 1, 0)
        who.expect("#status", re.compile("^No answer"))
        assert who.page.locator("#confirm").is_disabled()
        server.start()
        who.wait("4 of 10, 1 skipped")
        gone = ("ERR_CONNECTION", "ERR_EMPTY", "ERR_CONTENT_LENGTH")  # killed before, or in the middle of, an answer
        assert not [error for error in who.errors if not any(code in error for code in gone)]

        # The rest; the skipped one comes last, and says so.
        for done in range(4, 9):
            assert who.instance() != skipped
            said[who.instance()] = (1, 0, 2, 3)
            who.press("2", "1", "3", "Enter")
            who.wait(f"{done + 1} of 10, 1 skipped")
        assert who.instance() == skipped and "skipped this one before" in who.page.inner_text("#status")
        said[skipped] = (0, 1, 2, 3)
        who.press("1", "2", "3", "Enter")
        who.page.wait_for_selector("#end:not([hidden])")

    store = AnswerStore(tmp_path / STORE)
    (person,) = store.annotators()
    latest = {answer.instance_id: answer for answer in store.latest()}
    assert latest.keys() == said.keys() and len(latest) == 10
    for instance, choice in said.items():
        shown = assignment.candidate_order(person.token, instance, 4)
        expected = None if isinstance(choice, str) else tuple(shown[place] for place in choice)
        assert latest[instance].ranking == expected
        assert latest[instance].verdict == (choice if isinstance(choice, str) else "ranked")
    assert len(store.every()) == 10 + 2 + 1  # the undo and what followed it, and the skip
