"""Pairs of a character's image and a panel: drawn ones, those of generated stories, and their held-out cases."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image
from pydantic import ValidationError

from paco_core.config.params import CharacterPairsParams, ReasonsParams
from paco_core.data.pairs.character_stories import add_stories
from paco_core.data.pairs.characters import (
    NEGATIVES,
    POSITIVE,
    CharacterPairs,
    draw_cases,
    held_out_table,
    kind_counts,
    read_held_out_cases,
)
from paco_core.data.pairs.pairs import pair_table
from paco_core.data.pairs.reasons import explain_pairs
from paco_core.data.records.panels import PanelStore
from paco_core.io.files import DataError
from paco_core.reward_model.examples import read_examples
from paco_core.storybook.characters import random_case
from paco_core.storybook.world import IDENTITY

SHARES: dict[Any, float] = {"other_character": 0.2, "copy": 0.15, "swapped": 0.1, "absent": 0.05}


def make_pairs(count: int = 60, seed: int = 0, **changes: Any) -> CharacterPairs:
    return draw_cases(CharacterPairsParams(count=count, shares=SHARES, size=24, seed=seed, **changes))


@pytest.mark.parametrize("total", [0, 1, 7, 60])
def test_each_kind_has_its_share_and_the_others_are_positive(total: int) -> None:
    counts = kind_counts(total, SHARES)
    assert sum(counts.values()) == total and counts[POSITIVE] >= 0
    assert {kind: counts[kind] for kind in NEGATIVES} == {kind: round(SHARES[kind] * total) for kind in NEGATIVES}


def test_drawn_cases_have_exact_shares_and_every_number_of_images() -> None:
    characters = make_pairs()
    assert Counter(case.kind for case in characters.cases) == {POSITIVE: 30, "other_character": 12, "copy": 9,
                                                               "swapped": 6, "absent": 3}  # fmt: skip
    for kind in (POSITIVE, *NEGATIVES):
        numbers = Counter(len(case.references) for case in characters.cases if case.kind == kind)
        assert set(numbers) == {1, 2, 3} and max(numbers.values()) - min(numbers.values()) <= 1
    assert len(characters.pairs) == sum(len(case.references) for case in characters.cases)
    assert all(len(case.references) == 2 for case in make_pairs(references=[2]).cases)


def test_drawn_pairs_depend_on_the_seed_only() -> None:
    first, second, other = make_pairs(), make_pairs(), make_pairs(seed=1)
    assert first.pairs == second.pairs and first.cases == second.cases
    assert first.pictures.pngs == second.pictures.pngs
    assert not {pair.pair_id for pair in first.pairs} & {pair.pair_id for pair in other.pairs}


def test_labels_follow_the_kind_and_a_copy_is_wrong_for_one_image_only() -> None:
    characters = make_pairs()
    labels: dict[str, list[str]] = {}
    for pair in characters.pairs:
        assert pair.answer is not None and pair.answer.startswith(f"{pair.label}.") and pair.question == "character"
        labels.setdefault(pair.second, []).append(pair.label)
    for case in characters.cases:
        expected = ["Yes" if case.kind == POSITIVE else "No"] * len(case.references)
        if case.kind == "copy":
            expected = ["No", *["Yes"] * (len(case.references) - 1)]
        assert sorted(labels[case.panel]) == sorted(expected), case.kind


@pytest.mark.parametrize("references", [1, 2, 3])
def test_what_a_drawn_panel_shows(references: int) -> None:
    for number in range(60):
        positive, other, swapped, copy = (
            random_case(kind, references, random.Random(number))
            for kind in (POSITIVE, "other_character", "swapped", "copy")
        )
        places = {(panel.scene, panel.size) for panel in positive.references}
        assert len({panel.scene for panel in positive.references}) == references
        assert (positive.panel.scene, positive.panel.size) not in places, "never the picture of a reference"
        assert all(getattr(positive.panel, t) == getattr(positive.references[0], t) for t in (*IDENTITY, "style"))
        assert any(getattr(other.panel, trait) != getattr(other.references[0], trait) for trait in IDENTITY)
        assert swapped.panel.species != swapped.references[0].species
        assert swapped.panel.style == swapped.references[0].style and copy.panel == copy.references[copy.copied]
        images, panel = copy.draw(32)
        assert len({image.tobytes() for image in images}) == references and panel.size == (32, 32)


def test_an_absent_character_leaves_the_scene() -> None:
    cases = [random_case("absent", 1, random.Random(number)) for number in range(12)]
    colours = [case.draw(32)[1].resize((1, 1)).getpixel((0, 0)) for case in cases]
    scenes = {case.panel.scene for case in cases}
    assert len(set(colours)) >= len(scenes) > 1 and {a for case in cases for a in case.answers()} == {
        "No. The second image shows no animal."
    }


def test_held_out_characters_are_in_no_pair(tmp_path: Path) -> None:
    characters = make_pairs()
    every = len(characters.cases)
    cases = characters.hold_out(0.25, seed=0)
    units = {case.prompt_id for case in cases}
    assert cases and len(cases) < every and not units & {pair.prompt_id for pair in characters.pairs}
    held_out_table(cases).to_parquet(tmp_path / "characters.parquet", index=False)
    assert read_held_out_cases(tmp_path) == cases
    assert read_held_out_cases(tmp_path / "none") == []
    characters.pictures.write(tmp_path / "characters")
    panels = PanelStore.below(tmp_path)
    assert all(panels.panel(ref).size == (24, 24) for case in cases for ref in (case.panel, *case.references))


def test_pairs_become_examples_with_the_name_in_their_query(tmp_path: Path) -> None:
    characters = make_pairs(12)
    characters.pictures.write(tmp_path / "characters")
    table = pair_table(characters.pairs, {})
    assert set(table["kind"]) >= {POSITIVE} and set(table["references"]) == {1, 2, 3} and set(table["theme"]) == {""}
    table.to_parquet(tmp_path / "train.parquet")
    examples = read_examples(tmp_path / "train.parquet", PanelStore.below(tmp_path).panel, "theme")
    for row, example in zip(table.to_dict("records"), examples, strict=True):
        assert f'the character "{row["character"]}"' in example.instruction and "not a copy" in example.instruction
        assert example.ordered and example.consistent == (row["label"] == "Yes")


def test_shares_must_leave_positive_panels() -> None:
    with pytest.raises(ValidationError, match="shares"):
        CharacterPairsParams(shares={"copy": 0.6, "absent": 0.4})
    with pytest.raises(ValidationError, match="references"):
        CharacterPairsParams(references=[4])


STORIES = [
    {"characters": [{"name": "Mia", "images": ["red.png", "pink.png"]}, {"name": "Fox", "images": ["blue.png"]}],
     "panels": [{"image": "a.png", "text": "Mia wakes."}, {"image": "b.png", "text": "fox sleeps."},
                {"image": "c.png", "text": "Mia meets Fox."}, {"image": "d.png", "text": "A foxglove."}]},
    {"characters": [{"name": "Bo", "images": ["green.png"]}],
     "panels": [{"image": "e.png", "text": "Bo runs."}, {"image": "f.png", "text": "Bo hides.", "shows": []}]},
]  # fmt: skip


def stories(folder: Path, *rows: Any) -> Path:
    for number, name in enumerate(("red", "pink", "blue", "green", *"abcdef")):
        Image.new("RGB", (16, 16), (20 * number, 255 - 20 * number, 7 * number)).save(folder / f"{name}.png")
    (folder / "stories.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows or STORIES))
    return folder / "stories.jsonl"


def kinds(characters: CharacterPairs) -> Counter[tuple[str, str]]:
    return Counter((case.character, case.kind) for case in characters.cases)


def test_generated_stories_give_every_kind(tmp_path: Path) -> None:
    characters = CharacterPairs()
    add_stories(characters, stories(tmp_path), dict.fromkeys(NEGATIVES, 0.2), seed=0)
    counts = kinds(characters)
    positives = {name: count for (name, kind), count in counts.items() if kind == POSITIVE}
    assert positives == {"Mia": 2, "Fox": 2, "Bo": 1}
    by_kind = Counter(case.kind for case in characters.cases)
    assert (
        by_kind["swapped"] == 2 and by_kind["copy"] == 4 and by_kind["absent"] == 5 and by_kind["other_character"] == 5
    )
    assert len({case.prompt_id for case in characters.cases}) == 1, "neighboring stories share panels, so also a split"
    assert all(pair.answer is None for pair in characters.pairs)
    copies = [pair for pair in characters.pairs if pair.kind == "copy" and pair.character == "Mia"]
    assert {pair.label for pair in copies if pair.first == pair.second} == {"No"}
    assert {pair.label for pair in copies if pair.first != pair.second} == {"Yes"}


def test_the_selection_of_negative_panels_depends_on_the_seed(tmp_path: Path) -> None:
    file, cases = stories(tmp_path), []
    for seed in (0, 0, 1, 2):
        characters = CharacterPairs()
        add_stories(characters, file, {"other_character": 0.3}, seed)
        assert len([case for case in characters.cases if case.kind != POSITIVE]) == round(0.3 * 5 / 0.7)
        cases.append(characters.cases)
    assert cases[0] == cases[1] and (cases[0] != cases[2] or cases[0] != cases[3])


def test_unusable_stories_are_counted_with_their_line(tmp_path: Path) -> None:
    missing = STORIES[0] | {"panels": [{"image": "no.png", "text": "Mia"}]}
    unknown = STORIES[1] | {"panels": [{"image": "e.png", "text": "Bo", "shows": ["Ann"]}]}
    twice = STORIES[1] | {"characters": [{"name": "Bo", "images": ["red.png"]}, {"name": "bo", "images": ["red.png"]}]}
    many = STORIES[1] | {"characters": [{"name": "Bo", "images": ["red.png"] * 4}]}
    characters = CharacterPairs()
    file = stories(tmp_path, STORIES[0], missing, unknown, twice, many)
    add_stories(characters, file, {}, 0)
    assert [place for place, _ in characters.rejected] == [f"{file}:{line}" for line in (2, 3, 4, 5)]
    assert characters.rejected.figures() == {"rejected.picture": 1, "rejected.record": 3}
    with pytest.raises(DataError, match="stories.jsonl"):
        add_stories(CharacterPairs(), stories(tmp_path, missing), {}, 0)


def test_the_tables_have_the_kind_and_the_number_of_images() -> None:
    table = pair_table(make_pairs(9).pairs, {})
    assert isinstance(table, pd.DataFrame) and table["kind"].notna().all() and table["character"].notna().all()


def test_panels_that_annotators_reject_are_always_negative(tmp_path: Path) -> None:
    panels = [{"image": "a.png", "text": "Mia.", "shows": ["Mia"]},
              {"image": "b.png", "text": "Mia.", "shows": [], "wrong": ["Mia"]}]  # fmt: skip
    ranked = {"characters": [{"name": "Mia", "images": ["red.png"]}], "panels": panels}
    characters = CharacterPairs()
    add_stories(characters, stories(tmp_path, ranked, STORIES[1]), {}, 0)
    assert kinds(characters) == {("Mia", POSITIVE): 1, ("Mia", "other_character"): 1, ("Bo", POSITIVE): 1}
    contradictory = {**ranked, "panels": [{"image": "a.png", "text": "Mia.", "shows": ["Mia"], "wrong": ["Mia"]}]}
    characters = CharacterPairs()
    add_stories(characters, stories(tmp_path, contradictory, ranked), {}, 0)
    assert len(characters.rejected) == 1


def test_labels_of_stories_need_no_engine_for_reasons(tmp_path: Path) -> None:
    characters = CharacterPairs()
    add_stories(characters, stories(tmp_path), {"copy": 0.2}, 0)
    table = pair_table(characters.pairs, {})
    ranked = table.iloc[:1].assign(character=None, question=None, theme="a fox")
    characters.pictures.write(tmp_path / "characters")
    panels = PanelStore.below(tmp_path)
    explained = explain_pairs(pd.concat([table, ranked]), panels, ReasonsParams(engine="none"))
    assert list(explained.table["answer"]) == [f"{label}." for label in table["label"]]
    assert explained.causes == {"no_answer_given": 1}


def test_the_recognizer_writes_reasons_about_characters(repository: Path, tmp_path: Path) -> None:
    characters = draw_cases(CharacterPairsParams(count=40, shares=SHARES, size=64, references=[1]))
    characters.pictures.write(tmp_path / "characters")
    table = pair_table([pair for pair in characters.pairs if pair.kind != "absent"], {})
    exact = (table["kind"] != "copy") | (table["first"] == table["second"])
    table = table[exact].reset_index(drop=True)
    params = ReasonsParams(engine="storybook", model="data/zoo/recogniser")
    explained = explain_pairs(table.assign(answer=None), PanelStore.below(tmp_path), params, repository)
    assert len(explained.table) >= 0.9 * len(table), "it reads nearly all drawn panels as they are"
    answers = dict(zip(table["pair_id"], table["answer"], strict=True))
    matches = [answers[row["pair_id"]] == row["answer"] for row in explained.table.to_dict("records")]
    assert sum(matches) >= 0.9 * len(matches)
