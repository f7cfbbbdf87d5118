"""Prompt texts, records, and diversification."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from paco_core.config.params import PromptsParams
from paco_core.data.prompts.diversify import _restore, _trim, at_least, diversify, independent_set, nearest
from paco_core.data.prompts.prompts import imported, make_prompts
from paco_core.data.records import prompt_text
from paco_core.data.records.categories import category
from paco_core.data.records.records import PromptRecord, read_prompts, split_panels, write_prompts
from paco_core.io.files import DataError, write_jsonl
from tests.support.dataset_world import quick, records

LAYOUTS = ("2x2", "1x2", "1x3", "1x5", "1x7", "2x3", "2x4")


@pytest.fixture(scope="module")
def public(public_prompts: Path) -> list[PromptRecord]:
    return read_prompts(public_prompts)


def test_public_texts_come_back_without_loss(public: list[PromptRecord]) -> None:
    assert {record.layout for record in public} == set(LAYOUTS)
    for record in public:
        parts = prompt_text.parse(record.prompt, record.layout)
        assert str(parts) == record.prompt
        assert [panel.mark for panel in parts.panels] == prompt_text.panel_marks(record.layout)
        assert parts.head and parts.subject and parts.shared and all(panel.text for panel in parts.panels)
        texts = [panel.text for panel in parts.panels]
        again = prompt_text.compose(parts.subject, parts.shared, texts, record.layout)
        read = prompt_text.parse(str(again), record.layout)
        assert (read.subject, read.shared) == (parts.subject, parts.shared)
        assert [panel.text for panel in read.panels] == texts


def test_public_records_can_be_imported(public: list[PromptRecord], tmp_path: Path) -> None:
    write_prompts(tmp_path / "all.jsonl", public)
    assert read_prompts(tmp_path / "all.jsonl") == public
    rows = imported(tmp_path / "all.jsonl", ("1x5",), 10).records
    assert len(rows) == 10 and {row.layout for row in rows} == {"1x5"}
    assert len({category(record) for record in public}) == 5
    with pytest.raises(DataError, match="it holds .*62 of 1x5"):
        imported(tmp_path / "all.jsonl", ("1x5",), 1000)


def test_no_public_record_is_dropped_for_its_layout(public: list[PromptRecord], public_prompts: Path) -> None:
    made = imported(public_prompts, (), None)
    assert made.records == public and made.figures == {"rejected": 0}
    counts = {layout: sum(r.layout == layout for r in made.records) for layout in LAYOUTS}
    assert counts == {"2x2": 138, "1x2": 2, "1x3": 58, "1x5": 62, "1x7": 3, "2x3": 34, "2x4": 1}
    some = imported(public_prompts, ("1x3", "2x3"), None).records
    assert some == [record for record in public if record.layout in ("1x3", "2x3")]


def test_layouts_of_the_storybook_take_turns_and_keep_the_size_of_a_panel() -> None:
    params = PromptsParams(engine="storybook", count=7, layout=["2x2", "1x3", "3x3"], seed=0)
    made = make_prompts(params, (64, 32)).records
    assert [record.layout for record in made] == ["2x2", "1x3", "3x3", "2x2", "1x3", "3x3", "2x2"]
    assert {(r.layout, r.height, r.width) for r in made} == {("2x2", 64, 32), ("1x3", 32, 48), ("3x3", 96, 48)}
    alone = PromptsParams(engine="storybook", count=3, layout="2x2", seed=0)
    assert make_prompts(alone, (64, 32)).records == made[::3], "a layout's prompts do not depend on the others"
    assert make_prompts(params.model_copy(update={"count": 4}), (64, 32)).records == made[:4]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engine": "storybook", "layout": None}, "engine 'storybook' needs layout"),
        ({"engine": "storybook", "layout": ["2x2", "2x2"]}, "names one twice"),
        ({"engine": "storybook", "layout": []}, "at least 1 item"),
        ({"engine": "storybook", "layout": ["2x2", "two"]}, "'two' is not a layout"),
    ],
)
def test_layouts_that_make_no_sense_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        PromptsParams.model_validate({"count": 4, "seed": 0, **changes})


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
    made = imported(tmp_path / "train_metadata.jsonl", ("2x2",), 50)
    assert made.figures == {"rejected": 0} and len(made.records) == 50


#: What is wrong with a record, by what its cause must say.
BAD: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "is already on line 1": lambda row: row,
    "size: ": lambda row: row | {"idx": "a", "size": "big"},
    "size [64, 32] is not its height and width": lambda row: row | {"idx": "b", "size": [64, 32]},
    "editing_prompts: ": lambda row: row | {"idx": "c", "editing_prompts": "Change it."},
    "idx: ": lambda row: row | {"idx": "/etc/passwd"},
    "unknown category 'Cats'": lambda row: row | {"idx": "d", "category": "Cats"},
    "layout 2x3 has 6": lambda row: row | {"idx": "e", "layout": "2x3"},
    "theme: ": lambda row: {key: value for key, value in row.items() if key != "theme"} | {"idx": "f"},
}


def test_bad_records_are_left_out_and_counted_with_line_and_cause(tmp_path: Path) -> None:
    good = make_prompts(PromptsParams(engine="storybook", count=4, layout="2x2", seed=0), (32, 32)).records
    rows = [released(record, number) | {"note": 1} for number, record in enumerate(good)]
    lines = [json.dumps(row) for row in [*rows, *(change(dict(rows[0])) for change in BAD.values())]]
    (tmp_path / "mixed.jsonl").write_text("\n".join([*lines, "[1, 2]", lines[0][:40]]))
    made = imported(tmp_path / "mixed.jsonl", ("2x2",), 4)
    assert [record.idx for record in made.records] == [record.idx for record in good]
    assert made.figures == {"rejected": 10, "unknown_key.note": 4}
    assert [int(place.rpartition(":")[2]) for place, _ in made.rejected] == list(range(5, 15))
    for (_, cause), expected in zip(made.rejected, [*BAD, "expected a JSON object", "cut off"], strict=True):
        assert expected in cause
    with pytest.raises(DataError, match=r"it holds 4 of 2x2; 10 left out, e\.g\. .*mixed\.jsonl:5: record: idx"):
        imported(tmp_path / "mixed.jsonl", ("2x2",), 5)
    with pytest.raises(DataError, match=r"mixed\.jsonl:5: idx"):
        read_prompts(tmp_path / "mixed.jsonl")


words = st.text("abcdefgh 4x,", min_size=1, max_size=30).map(str.strip).filter(bool)


@quick
@given(st.sampled_from(LAYOUTS), st.data())
def test_composed_texts_are_read_back(layout: str, data: st.DataObject) -> None:
    count = len(prompt_text.panel_marks(layout))
    texts = data.draw(st.lists(words, min_size=count, max_size=count))
    subject, shared = data.draw(words), "All images show " + data.draw(words) + "."
    made = prompt_text.parse(str(prompt_text.compose(subject, shared, texts, layout)), layout)
    assert (made.subject, made.shared, [panel.text for panel in made.panels]) == (subject, shared, texts)
    assert split_panels(str(made), layout) == (made.opening, texts)


def test_storybook_records_are_read(tmp_path: Path) -> None:
    made = records(12)
    assert all(prompt_text.parse(r.prompt, r.layout).shared.startswith("All images show") for r in made)
    assert records(6) == made[:6]


@pytest.mark.parametrize(
    ("text", "layout", "message"),
    [
        ("a 4x4 jeep [LEFT]: a [RIGHT]: b", "1x3", "marks 2 panels, its layout 1x3 has 3"),
        ("[RIGHT]: a [LEFT]: b", "1x2", "out of reading order"),
        ("PANEL-2: a PANEL-1: b", "1x2", "out of reading order"),
        ("[UP]: a [RIGHT]: b", "1x2", "is not a position"),
    ],
)
def test_a_wrong_text_is_refused(text: str, layout: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        prompt_text.parse(text, layout)


def unit_rows(count: int, width: int = 8, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def assert_independent_and_maximal(rows: np.ndarray, kept: list[int], threshold: float) -> None:
    similar = rows @ rows.T
    assert kept == sorted(set(kept))
    assert all(similar[a, b] < threshold + 1e-6 for a in kept for b in kept if a < b)
    others = sorted(set(range(len(rows))) - set(kept))
    assert (similar[np.ix_(others, kept)].max(axis=1) >= threshold - 1e-6).all()


@quick
@given(st.integers(1, 60), st.floats(-0.5, 1.0), st.integers(0, 5))
def test_the_set_is_independent_and_maximal(count: int, threshold: float, seed: int) -> None:
    rows = unit_rows(count, seed=seed)
    kept = independent_set(rows, threshold)
    assert_independent_and_maximal(rows, kept, threshold)
    similar = rows @ rows.T
    for other in set(range(count)) - set(kept):
        assert max(similar[other, k] for k in kept if k < other) >= threshold - 1e-6, "greedy in the given order"


@quick
@given(st.integers(30, 60), st.integers(0, 5))
def test_the_threshold_is_the_lowest_that_keeps_the_target(count: int, seed: int) -> None:
    rows = unit_rows(count, seed=seed)
    kept, threshold = at_least(rows, count // 3)
    assert len(kept) >= count // 3 and kept == independent_set(rows, threshold)
    assert len(independent_set(rows, threshold - 2.001 / 2**18)) < count // 3


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = unit_rows(50)
    whole, near = independent_set(rows, 0.4), nearest(rows)
    monkeypatch.setattr("paco_core.data.prompts.diversify.BLOCK", 7)
    assert independent_set(rows, 0.4) == whole
    np.testing.assert_allclose(nearest(rows), near, atol=1e-6)
    similar = rows @ rows.T
    np.fill_diagonal(similar, -1)
    np.testing.assert_allclose(near, similar.max(axis=1), atol=1e-6)


def test_a_target_is_met_and_no_subcategory_is_emptied() -> None:
    made = records(48)
    rows = unit_rows(48)
    rows[1::6] = rows[1]  # one subcategory of equal themes
    found = diversify(rows, made, target=20)
    assert len(found.kept) == 20
    assert {made[n].task_name for n in found.kept} == {record.task_name for record in made}
    assert np.isnan(found.nearest_after).sum() == 28
    assert np.nanmean(found.nearest_after) < found.nearest_before.mean()
    tight = diversify(np.tile(rows[:1], (48, 1)), made, threshold=0.9)
    assert len(tight.kept) == 6 and tight.restored == 5
    with pytest.raises(DataError, match="between 6 .* and 48"):
        diversify(rows, made, target=3)


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
    kept = [0, 1, 2, 3, 4]
    assert _trim(embeddings, kept, groups, 5) == kept
    assert _trim(embeddings, kept, groups, 4) == [0, 1, 3, 4], "of two equally similar ones the later"
    # Now both subcategories have two: the later name loses, of which 4 is nearer to another kept prompt (3).
    assert _trim(embeddings, kept, groups, 3) == [0, 1, 3]
    assert _trim(embeddings, kept, groups, 2) == [0, 3]
