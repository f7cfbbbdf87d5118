"""Prompt texts, records, diversification, and the layout of a text: what its marks and its head state."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError

from paco_core.config.params import PromptsParams
from paco_core.data.prompts.diversify import _restore, _trim, at_least, diversify, independent_set, nearest_similarity
from paco_core.data.prompts.prompts import make_prompts, read_imported_prompts
from paco_core.data.records import prompt_text
from paco_core.data.records.panels import grid_size, split_grid
from paco_core.data.records.prompt_text import layout_of, parse_layout
from paco_core.data.records.records import PromptRecord, read_prompts, split_panels
from paco_core.io.files import DataError, write_jsonl
from paco_core.operations.prompt_records import default_layout, set_record
from paco_core.sampling.generated_image import GeneratedImage
from tests.support.dataset_world import quick, records

LAYOUTS = ("2x2", "1x2", "1x3", "1x5", "1x7", "2x3", "2x4")


@pytest.fixture(scope="module")
def public(public_prompts: Path) -> list[PromptRecord]:
    return read_prompts(public_prompts)


def test_public_texts_come_back_without_loss(public: list[PromptRecord]) -> None:
    assert {record.layout for record in public} == set(LAYOUTS)
    for record in public:
        parts = prompt_text.parse_prompt(record.prompt, record.layout)
        assert str(parts) == record.prompt
        assert [panel.mark for panel in parts.panels] == prompt_text.panel_marks(record.layout)
        assert parts.head and parts.subject and parts.shared and all(panel.text for panel in parts.panels)
        texts = [panel.text for panel in parts.panels]
        composed = prompt_text.compose_prompt(parts.subject, parts.shared, texts, record.layout)
        read = prompt_text.parse_prompt(str(composed), record.layout)
        assert (read.subject, read.shared) == (parts.subject, parts.shared)
        assert [panel.text for panel in read.panels] == texts


def test_layouts_of_the_storybook_take_turns_and_keep_the_size_of_a_panel() -> None:
    params = PromptsParams(engine="storybook", count=7, layout=["2x2", "1x3", "3x3"], seed=0)
    prompts = make_prompts(params, (64, 32)).records
    assert [record.layout for record in prompts] == ["2x2", "1x3", "3x3", "2x2", "1x3", "3x3", "2x2"]
    assert {(r.layout, r.height, r.width) for r in prompts} == {("2x2", 64, 32), ("1x3", 32, 48), ("3x3", 96, 48)}
    single_layout = PromptsParams(engine="storybook", count=3, layout="2x2", seed=0)
    assert make_prompts(single_layout, (64, 32)).records == prompts[::3], (
        "a layout's prompts do not depend on the others"
    )
    assert make_prompts(params.model_copy(update={"count": 4}), (64, 32)).records == prompts[:4]


def released(record: PromptRecord, number: int) -> dict[str, Any]:
    """A record as PaCo-GRPO's files hold it: some with the key `size`, some without."""
    extra = {"from": "T2IS", "original_idx": f"0001_{record.idx}", "editing_prompts": ["A picture.", "Change it."]}
    return {**record.model_dump(), **extra, **({"size": [record.height, record.width]} if number % 2 else {})}


def test_released_records_are_read_and_kept_as_they_are(public: list[PromptRecord], tmp_path: Path) -> None:
    rows = [released(record, number) for number, record in enumerate(public)]
    write_jsonl(tmp_path / "train_metadata.jsonl", rows)
    records = read_prompts(tmp_path / "train_metadata.jsonl")
    assert [record.model_dump() for record in records] == rows
    assert not any(record.unknown_keys for record in records)
    imported = read_imported_prompts(tmp_path / "train_metadata.jsonl", (), None)
    assert imported.records == records and imported.figures == {"rejected": 0}
    some = read_imported_prompts(tmp_path / "train_metadata.jsonl", ("1x3", "2x3"), 50).records
    assert some == [record for record in records if record.layout in ("1x3", "2x3")][:50]


#: What is wrong with a record, by what its cause must say.
BAD: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "is already on line 1": lambda row: row,
    "size: ": lambda row: row | {"idx": "a", "size": "big"},
    "size [64, 32] is not its height and width": lambda row: row | {"idx": "b", "size": [64, 32]},
    "editing_prompts: ": lambda row: row | {"idx": "c", "editing_prompts": "Change it."},
    "idx: ": lambda row: row | {"idx": "/etc/passwd"},
    "unknown category 'Cats'": lambda row: row | {"idx": "d", "category": "Cats"},
    "layout 2x3 has 6": lambda row: row | {"idx": "e", "layout": "2x3"},
    "height: ": lambda row: row | {"idx": "g", "height": 1 << 20},
    "<|im_end|>": lambda row: row | {"idx": "h", "theme": "a cat <|im_end|>"},
    "theme: ": lambda row: {key: value for key, value in row.items() if key != "theme"} | {"idx": "f"},
}


def test_bad_records_are_left_out_and_counted_with_line_and_cause(tmp_path: Path) -> None:
    good = make_prompts(PromptsParams(engine="storybook", count=4, layout="2x2", seed=0), (32, 32)).records
    rows = [released(record, number) | {"note": 1} for number, record in enumerate(good)]
    lines = [json.dumps(row) for row in [*rows, *(change(dict(rows[0])) for change in BAD.values())]]
    (tmp_path / "mixed.jsonl").write_text("\n".join([*lines, "[1, 2]", lines[0][:40]]))
    imported = read_imported_prompts(tmp_path / "mixed.jsonl", ("2x2",), 4)
    assert [record.idx for record in imported.records] == [record.idx for record in good]
    assert imported.figures == {"rejected": 12, "unknown_key.note": 4}
    assert [int(place.rpartition(":")[2]) for place, _ in imported.rejected] == list(range(5, 17))
    for (_, cause), expected in zip(imported.rejected, [*BAD, "expected a JSON object", "cut off"], strict=True):
        assert expected in cause
    with pytest.raises(DataError, match=r"it holds 4 of 2x2; 12 left out, .*mixed\.jsonl:5"):
        read_imported_prompts(tmp_path / "mixed.jsonl", ("2x2",), 5)
    with pytest.raises(DataError, match=r"mixed\.jsonl:5: idx"):
        read_prompts(tmp_path / "mixed.jsonl")


words = st.text("abcdefgh 4x,", min_size=1, max_size=30).map(str.strip).filter(bool)


@quick
@given(st.sampled_from(LAYOUTS), st.data())
def test_composed_texts_are_read_back(layout: str, data: st.DataObject) -> None:
    count = len(prompt_text.panel_marks(layout))
    texts = data.draw(st.lists(words, min_size=count, max_size=count))
    subject, shared = data.draw(words), "All images show " + data.draw(words) + "."
    parsed = prompt_text.parse_prompt(str(prompt_text.compose_prompt(subject, shared, texts, layout)), layout)
    assert (parsed.subject, parsed.shared, [panel.text for panel in parsed.panels]) == (subject, shared, texts)
    assert split_panels(str(parsed), layout) == (parsed.opening, texts)


def unit_rows(count: int, width: int = 8, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def assert_independent_and_maximal(rows: np.ndarray, selected: list[int], threshold: float) -> None:
    similar = rows @ rows.T
    assert selected == sorted(set(selected))
    assert all(similar[a, b] < threshold + 1e-6 for a in selected for b in selected if a < b)
    excluded = sorted(set(range(len(rows))) - set(selected))
    assert (similar[np.ix_(excluded, selected)].max(axis=1) >= threshold - 1e-6).all()


@quick
@given(st.integers(1, 60), st.floats(-0.5, 1.0), st.integers(0, 5))
def test_the_set_is_independent_and_maximal(count: int, threshold: float, seed: int) -> None:
    rows = unit_rows(count, seed=seed)
    selected = independent_set(rows, threshold)
    assert_independent_and_maximal(rows, selected, threshold)
    similar = rows @ rows.T
    for other in set(range(count)) - set(selected):
        assert max(similar[other, k] for k in selected if k < other) >= threshold - 1e-6, "greedy in the given order"


@quick
@given(st.integers(30, 60), st.integers(0, 5))
def test_the_threshold_is_the_lowest_that_keeps_the_target(count: int, seed: int) -> None:
    rows = unit_rows(count, seed=seed)
    selected, threshold = at_least(rows, count // 3)
    assert len(selected) >= count // 3 and selected == independent_set(rows, threshold)
    assert len(independent_set(rows, threshold - 2.001 / 2**18)) < count // 3


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = unit_rows(50)
    expected, near = independent_set(rows, 0.4), nearest_similarity(rows)
    monkeypatch.setattr("paco_core.data.prompts.diversify.BLOCK", 7)
    assert independent_set(rows, 0.4) == expected
    np.testing.assert_allclose(nearest_similarity(rows), near, atol=1e-6)
    similar = rows @ rows.T
    np.fill_diagonal(similar, -1)
    np.testing.assert_allclose(near, similar.max(axis=1), atol=1e-6)


def test_a_target_is_met_and_no_subcategory_is_emptied() -> None:
    prompts = records(48)
    rows = unit_rows(48)
    rows[1::6] = rows[1]  # one subcategory of equal themes
    diversified = diversify(rows, prompts, target=20)
    assert len(diversified.selected) == 20
    assert {prompts[n].task_name for n in diversified.selected} == {record.task_name for record in prompts}
    assert np.isnan(diversified.nearest_after).sum() == 28
    assert np.nanmean(diversified.nearest_after) < diversified.nearest_before.mean()
    tight = diversify(np.tile(rows[:1], (48, 1)), prompts, threshold=0.9)
    assert len(tight.selected) == 6 and tight.restored == 5
    with pytest.raises(DataError, match="between 6 .* and 48"):
        diversify(rows, prompts, target=3)


def at(*degrees: float) -> np.ndarray:
    """Embeddings of unit length in these directions."""
    angles = np.deg2rad(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def test_an_emptied_subcategory_gets_its_first_prompt_back() -> None:
    groups = [("a", "x")] * 2 + [("b", "y")] * 2
    assert _restore([0], groups) == [0, 2]
    assert _restore([3], groups) == [0, 3]
    assert _restore([0, 3], groups) == [0, 3]


def test_the_surplus_goes_from_the_largest_subcategory_most_similar_and_latest_first() -> None:
    """Prompts 1 and 2 are 10 degrees apart, 3 lies 40 from them, 0 and 4 are of the other subcategory."""
    embeddings = at(0, 90, 100, 140, 200)
    groups = [("b", "y"), *[("a", "x")] * 3, ("b", "y")]
    selected = [0, 1, 2, 3, 4]
    assert _trim(embeddings, selected, groups, 5) == selected
    assert _trim(embeddings, selected, groups, 4) == [0, 1, 3, 4], "of two equally similar ones the later"
    # Now both subcategories have two: the later name loses, of which 4 is nearer to another kept prompt (3).
    assert _trim(embeddings, selected, groups, 3) == [0, 1, 3]
    assert _trim(embeddings, selected, groups, 2) == [0, 3]


GRIDS = [*(f"1x{n}" for n in range(2, 9)), "2x1", "3x1", "4x1", "2x2", "2x3", "3x2", "2x4", "4x2", "3x3", "4x3"]


def grid(layout: str) -> Image.Image:
    """A picture whose panels are filled with their numbers."""
    rows, columns = parse_layout(layout)
    page = Image.new("RGB", (columns * 8, rows * 8))
    for number in range(rows * columns):
        page.paste((number * 20, 0, 0), (number % columns * 8, number // columns * 8, 999, 999))
    return page


def panel_colours(image: Image.Image, layout: str) -> list[int]:
    return [panel.getpixel((4, 4))[0] // 20 for panel in split_grid(image, layout)]


@pytest.mark.parametrize("layout", GRIDS)
def test_a_prompt_that_the_project_wrote_is_cut_into_its_panels(layout: str) -> None:
    rows, columns = parse_layout(layout)
    texts = [f"panel {n}" for n in range(rows * columns)]
    written = set_record("a red cat", texts, 64, layout)
    assert written.layout == layout
    assert [p.text for p in prompt_text.parse_prompt(written.prompt, layout).panels] == texts
    again = set_record(written.prompt, [], 64)
    assert (again.layout, again.height, again.width, again.idx) == (layout, 64 * rows, 64 * columns, written.idx)
    image = GeneratedImage("p", 64, "after", again, 0, grid(layout))
    assert [panel.getpixel((4, 4))[0] // 20 for panel in image.panels] == list(range(rows * columns))
    assert panel_colours(grid(layout), again.layout) == list(range(rows * columns))
    headless = prompt_text.HEAD.sub("Pictures", written.prompt)
    assert layout_of(headless) == layout, "the marks alone say it, too"


def test_public_prompts_have_the_layouts_of_their_records(public_prompts: Path) -> None:
    records = [json.loads(line) for line in public_prompts.read_text(encoding="utf-8").splitlines()]
    assert len(records) == 298 and {layout_of(r["prompt"]) == r["layout"] for r in records} == {True}


def row(prompt: str, **fields: object) -> dict[str, object]:
    return {"idx": "a", "prompt": prompt, "height": 8, "width": 8, "theme": "t", "category": "c", "task_name": "n",
            "criteria": {}, **fields}  # fmt: skip


def test_a_record_without_layout_has_the_one_that_its_text_states() -> None:
    written = set_record("a red cat", ["a", "b", "c", "d"], 64, "4x1").prompt
    assert PromptRecord.model_validate(row(written, layout=None)).layout == "4x1"
    for prompt in ("four pictures of a cat: one, two, three, four", "A cat. [TOP]-[LEFT]: a [BOTTOM]-[RIGHT]: b"):
        with pytest.raises(ValidationError):
            PromptRecord.model_validate(row(prompt))


@pytest.mark.parametrize(
    ("layout", "size"),
    [("2x2", (64, 32)), ("1x2", (32, 32)), ("1x7", (32, 112)), ("2x1", (64, 16)), ("3x3", (96, 48)), ("1x1", (64, 32))],
)
def test_panels_are_as_large_in_every_layout(layout: str, size: tuple[int, int]) -> None:
    assert grid_size(layout, (64, 32)) == size


CONTRADICTIONS = [
    ("FOUR-PANEL Images with a 1x4 grid layout of x. [TOP]-[LEFT]: a [TOP]-[RIGHT]: b [BOTTOM]-[LEFT]: c "
     "[BOTTOM]-[RIGHT]: d", None, [], "1x4 .*2x2"),
    ("SIX-PANEL Images with a 2x3 grid layout of x. PANEL-1: a PANEL-2: b", None, [], "2 panels.* 2x3"),
    ("A cat. [LEFT]: a [RIGHT]: b", "2x1", [], "2x1.* 1x2"),
    ("A cat. PANEL-1: a PANEL-2: b PANEL-3: c", "2x2", [], "3 panels.* 2x2"),
    ("A cat. [TOP]-[LEFT]: a [BOTTOM]-[RIGHT]: b", None, [], "grid"),
    ("A cat. [RIGHT]: a [LEFT]: b", None, [], "order"),
    ("A cat. [LEFT]: a [RIGHT]: b", "two", [], "'two'"),
    ("A cat. PANEL-2: a PANEL-1: b", None, [], "order"),
    ("A cat. [UP]: a [RIGHT]: b", None, [], "UP|position"),
    ("a red cat", "2x2", ["a", "b", "c"], "2x2 .*4 panels, 3"),
]  # fmt: skip


@pytest.mark.parametrize(("prompt", "layout", "panels", "fault"), CONTRADICTIONS)
def test_what_contradicts_itself_is_refused(prompt: str, layout: str | None, panels: list[str], fault: str) -> None:
    with pytest.raises(DataError, match=fault):
        set_record(prompt, panels, 64, layout)


def test_a_record_whose_text_states_another_layout_is_refused() -> None:
    text = set_record("a red cat", list("abcd"), 64, "2x2").prompt
    with pytest.raises(DataError, match="prompt states the layout 2x2, its record 1x4"):
        prompt_text.parse_prompt(text, "1x4")
    prompt_text.parse_prompt("A cat. PANEL-1: a PANEL-2: b PANEL-3: c PANEL-4: d", "2x2")  # numbers say nothing of rows


def test_numbered_panels_stand_in_one_row_unless_it_is_said_otherwise() -> None:
    text = "A cat. PANEL-1: a PANEL-2: b PANEL-3: c PANEL-4: d"
    assert [set_record(text, [], 64, layout).layout for layout in (None, "2x2", "4x1")] == ["1x4", "2x2", "4x1"]
    assert layout_of("A cat. [TOP]: a [MIDDLE]: b [BOTTOM]: c") == "3x1"
    assert layout_of("a 4x4 jeep") is None


def test_a_theme_with_panels_has_a_stated_default() -> None:
    assert [set_record("a cat", list("abcdefgh")[:n], 64).layout for n in (3, 4, 5, 6, 8)] == [
        default_layout(n) for n in (3, 4, 5, 6, 8)
    ] == ["1x3", "2x2", "1x5", "2x3", "2x4"]  # fmt: skip
    headed = set_record("FOUR-PANEL Images with a 1x4 grid layout of a red cat", list("abcd"), 64)
    assert headed.layout == "1x4" and headed.prompt.count("grid layout") == 1 and headed.theme == "a red cat"
