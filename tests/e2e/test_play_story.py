"""The section Story of `paco play` as a person uses it, in a real browser, with the zoo's FLUX.2 [klein]."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from PIL import Image

from paco_core.io import paths
from tests.support import tiny_vlm
from tests.support.play_page import expect, finished, open_page
from tests.support.small_project import adapter, lay_out, lay_out_klein

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1200)]
SCORE = re.compile(r"^[01]\.\d{3}$")


def choose(page: Page, character: int, *files: Path) -> None:
    with page.expect_file_chooser() as chooser:
        page.locator("#characters").get_by_role("button", name="Add images").nth(character).click()
    chooser.value.set_files(files)


def test_a_person_brings_characters_and_sees_both_stories_with_scores(repository: Path, tmp_path: Path) -> None:
    root = lay_out_klein(repository, tmp_path)
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["t2is"]["steps"] = 2
    (root / "params.yaml").write_text(yaml.safe_dump(params))
    adapter(root)
    tiny_vlm.build(root / paths.REWARD_MERGED)
    files = {name: root / f"{name}.png" for name in ("fox", "mia", "side")}
    for file, color in zip(files.values(), ("red", "blue", "cyan"), strict=True):
        Image.new("RGB", (64, 80), color).save(file)
    Image.new("RGBA", (64, 64), (0, 0, 0, 0)).save(root / "clear.png")

    with open_page(root) as page:
        page.keyboard.press("4")
        page.keyboard.press("Control+Enter")
        expect(page.locator("#story .fault")).to_contain_text("name")
        page.get_by_label("Name of character 1").fill("Fox")
        choose(page, 0, root / "clear.png")
        expect(page.locator("#story .fault")).to_contain_text("transparent")
        choose(page, 0, files["fox"])
        page.get_by_role("button", name="Add a character").click()
        page.get_by_label("Name of character 2").fill("Wolf")
        choose(page, 1, files["mia"], files["side"])
        expect(page.locator("#characters .thumb")).to_have_count(3)
        page.get_by_role("button", name="Remove the last").last.click()
        for number, text in enumerate(("Fox runs at night", "Mia meets Fox in the snow", "a beach")):
            page.locator("#story-panels textarea").nth(number).fill(text)
        page.keyboard.press("Control+Enter")
        expect(page.locator("#story .fault")).to_contain_text("no panel text names 'Wolf'")
        page.get_by_label("Name of character 2").fill("Mia")
        page.keyboard.press("Control+Enter")
        expect(page.locator("#story figure.strip .panels img")).to_have_count(6)
        finished(page, "story")
        names = page.locator("#story .agreement .name").all_inner_texts()
        assert names == ["Fox", "Fox", "Mia"] * 2
        assert all(SCORE.match(score) for score in page.locator("#story .agreement .score").all_inner_texts())
        assert page.locator("#story figcaption .name").all_inner_texts() == ["base story 1", "flux_t2is story 1"]
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.reload()
        expect(page.locator("#story .agreement")).to_have_count(6)  # a reload loses nothing


def test_the_section_explains_what_a_story_needs(repository: Path, tmp_path: Path) -> None:
    with open_page(lay_out(repository, tmp_path)) as page:
        page.click("#tab-story")
        expect(page.locator("#story .empty")).to_contain_text("flux2_klein")
        expect(page.locator("#story form")).to_be_hidden()
