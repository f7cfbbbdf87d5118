"""The layout of a text without a record: what its marks and its head state, never what its panels' number suggests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from pydantic import ValidationError

from paco_core.data.records import prompt_text
from paco_core.data.records.panels import cut, grid_size
from paco_core.data.records.prompt_text import layout_of, parse_layout
from paco_core.data.records.records import PromptRecord
from paco_core.io.files import DataError
from paco_core.operations.asked import default_layout, set_record
from paco_core.painting.painted import Painted
from paco_core.storybook.prompts import storybook_prompts

LAYOUTS = [
    *(f"1x{n}" for n in range(2, 9)),
    "2x1",
    "3x1",
    "4x1",
    "2x2",
    "2x3",
    "3x2",
    "2x4",
    "4x2",
    "3x3",
    "3x4",
    "4x3",
]


def grid(layout: str) -> Image.Image:
    """A picture whose panels are filled with their numbers."""
    rows, columns = parse_layout(layout)
    page = Image.new("RGB", (columns * 8, rows * 8))
    for number in range(rows * columns):
        page.paste((number * 20, 0, 0), (number % columns * 8, number // columns * 8, 999, 999))
    return page


def seen(image: Image.Image, layout: str) -> list[int]:
    return [panel.getpixel((4, 4))[0] // 20 for panel in cut(image, layout)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_prompt_that_the_project_wrote_is_cut_into_its_panels(layout: str) -> None:
    rows, columns = parse_layout(layout)
    texts = [f"panel {n}" for n in range(rows * columns)]
    written = set_record("a red cat", texts, 64, layout)
    assert written.layout == layout and [p.text for p in prompt_text.parse(written.prompt, layout).panels] == texts
    again = set_record(written.prompt, [], 64)
    assert (again.layout, again.height, again.width, again.idx) == (layout, 64 * rows, 64 * columns, written.idx)
    painted = Painted("p", 64, "after", again, 0, grid(layout))
    assert [panel.getpixel((4, 4))[0] // 20 for panel in painted.panels] == list(range(rows * columns))
    assert seen(grid(layout), again.layout) == list(range(rows * columns))
    headless = prompt_text.HEAD.sub("Pictures", written.prompt)
    assert layout_of(headless) == layout, "the marks alone say it, too"


@pytest.mark.parametrize("layout", ["1x1", "1x2", "1x4", "1x8", "2x2", "2x3", "3x2"])
def test_the_storybook_words_are_read_alike(layout: str) -> None:
    (made,) = storybook_prompts(1, 0, layout)
    assert layout_of(made.prompt) == layout and set_record(made.prompt, [], 64).layout == layout


def test_public_prompts_have_the_layouts_of_their_records(public_prompts: Path) -> None:
    records = [json.loads(line) for line in public_prompts.read_text(encoding="utf-8").splitlines()]
    assert len(records) == 298 and {layout_of(r["prompt"]) == r["layout"] for r in records} == {True}


def row(prompt: str, **more: object) -> dict[str, object]:
    return {"idx": "a", "prompt": prompt, "height": 8, "width": 8, "theme": "t", "category": "c", "task_name": "n",
            "criteria": {}, **more}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_record_without_layout_has_the_one_that_its_text_states(layout: str) -> None:
    rows, columns = parse_layout(layout)
    written = set_record("a red cat", [f"panel {n}" for n in range(rows * columns)], 64, layout).prompt
    assert PromptRecord.model_validate(row(written)).layout == layout
    assert PromptRecord.model_validate(row(written, layout=None)).layout == layout


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("four pictures of a cat: one, two, three, four", "the prompt states none by its head or the marks"),
        ("A cat. [TOP]-[LEFT]: a [BOTTOM]-[RIGHT]: b", "make no grid of rows and columns"),
    ],
)
def test_a_record_whose_layout_nothing_states_is_refused(prompt: str, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        PromptRecord.model_validate(row(prompt))


@pytest.mark.parametrize(
    ("layout", "size"),
    [("2x2", (64, 32)), ("1x2", (32, 32)), ("1x7", (32, 112)), ("2x1", (64, 16)), ("3x3", (96, 48)), ("1x1", (64, 32))],
)
def test_panels_are_as_large_in_every_layout(layout: str, size: tuple[int, int]) -> None:
    assert grid_size(layout, (64, 32)) == size


CONTRADICTIONS = [
    ("FOUR-PANEL Images with a 1x4 grid layout of x. [TOP]-[LEFT]: a [TOP]-[RIGHT]: b [BOTTOM]-[LEFT]: c "
     "[BOTTOM]-[RIGHT]: d", None, "says 1x4 at its head, its marks make 2x2"),
    ("SIX-PANEL Images with a 2x3 grid layout of x. PANEL-1: a PANEL-2: b", None, "marks 2 panels, its layout 2x3"),
    ("A cat. [LEFT]: a [RIGHT]: b", "2x1", "is to be 2x1, the prompt states 1x2"),
    ("A cat. PANEL-1: a PANEL-2: b PANEL-3: c", "2x2", "marks 3 panels, its layout 2x2 has 4"),
    ("A cat. [TOP]-[LEFT]: a [BOTTOM]-[RIGHT]: b", None, "make no grid of rows and columns"),
    ("A cat. [TOP]-[LEFT]: a [TOP]-[RIGHT]: b [BOTTOM]: c", None, "make no grid of rows and columns"),
    ("A cat. [RIGHT]: a [LEFT]: b", None, "out of reading order"),
    ("A cat. [LEFT]: a [RIGHT]: b", "two", "'two' is not a layout"),
]  # fmt: skip


@pytest.mark.parametrize(("prompt", "given", "said"), CONTRADICTIONS)
def test_what_contradicts_itself_is_refused(prompt: str, given: str | None, said: str) -> None:
    with pytest.raises(DataError, match=said):
        set_record(prompt, [], 64, given)


def test_panels_must_fill_the_layout_that_is_asked_for() -> None:
    with pytest.raises(DataError, match="layout 2x2 has 4 panels, 3 texts were given"):
        set_record("a red cat", ["a", "b", "c"], 64, "2x2")
    with pytest.raises(DataError, match="layout 1x4 has 4 panels, 3 texts were given"):
        set_record("FOUR-PANEL Images with a 1x4 grid layout of a red cat.", ["a", "b", "c"], 64)


def test_a_record_whose_text_states_another_layout_is_refused() -> None:
    text = set_record("a red cat", list("abcd"), 64, "2x2").prompt
    with pytest.raises(DataError, match="prompt states the layout 2x2, its record 1x4"):
        prompt_text.parse(text, "1x4")
    prompt_text.parse("A cat. PANEL-1: a PANEL-2: b PANEL-3: c PANEL-4: d", "2x2")  # numbers say nothing of rows


def test_numbered_panels_stand_in_one_row_unless_it_is_said_otherwise() -> None:
    text = "A cat. PANEL-1: a PANEL-2: b PANEL-3: c PANEL-4: d"
    assert [set_record(text, [], 64, given).layout for given in (None, "2x2", "4x1")] == ["1x4", "2x2", "4x1"]
    assert layout_of("A cat. [TOP]: a [MIDDLE]: b [BOTTOM]: c") == "3x1"
    assert layout_of("a 4x4 jeep") is None


def test_a_theme_with_panels_has_a_stated_default() -> None:
    assert [set_record("a cat", list("abcdefgh")[:n], 64).layout for n in (3, 4, 5, 6, 8)] == [
        default_layout(n) for n in (3, 4, 5, 6, 8)
    ] == ["1x3", "2x2", "1x5", "2x3", "2x4"]  # fmt: skip
    headed = set_record("FOUR-PANEL Images with a 1x4 grid layout of a red cat", list("abcd"), 64)
    assert headed.layout == "1x4" and headed.prompt.count("grid layout") == 1 and headed.theme == "a red cat"


def test_a_theme_is_said_once_in_the_wording_of_training() -> None:
    head = "TWO-PANEL Images with a 1x2 grid layout"
    for theme, opening in (
        ("a red cat", f"{head} of a red cat."),
        ("portraits of a red cat.", f"{head} portraits of a red cat."),
        ("of a red cat. All images show a red cat in flat style.",
         f"{head} of a red cat. All images show a red cat in flat style."),
    ):  # fmt: skip
        assert set_record(theme, ["one", "two"], 64).prompt == f"{opening} [LEFT]: one [RIGHT]: two"
