"""Training dialogues of the reward model's base: true answers about one trait, never the overall question."""

from __future__ import annotations

import random

import pytest

from paco_core.storybook.world import VOCABULARY, Panel, random_panel
from zoo.dialogues import (
    NOUNS,
    OVERALL,
    about_an_edit,
    edited_panel,
    one_picture,
    second_panel,
    two_pictures,
)

RED_CAT = Panel("cat", "red", "hat", "big", "beach", "flat")
TRAITS = tuple(VOCABULARY)


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("shaped", [True, False])
def test_every_answer_is_true_and_bare_answers_hold_no_reason(shaped: bool, bare: bool) -> None:
    rng = random.Random(1)
    for _ in range(100):
        first = random_panel(rng)
        second = second_panel(first, rng, 0.5)
        dialogue = two_pictures(first, second, "a theme", rng, traits=TRAITS, shaped=shaped, bare=bare)
        first, second = dialogue.panels
        assert len({turn.question for turn in dialogue.turns}) == (2 if shaped else 3)
        for turn in dialogue.turns:
            traits = [
                trait for trait in TRAITS if f" {NOUNS[trait]} " in turn.question.replace("?", " ").replace(".", " ")
            ]
            assert len(traits) == 1
            is_equal = getattr(first, traits[0]) == getattr(second, traits[0])
            assert turn.answer.startswith("Yes." if is_equal else "No.")
            assert (" " in turn.answer) is not bare


def test_the_overall_question_is_never_taught() -> None:
    rng = random.Random(2)
    start = OVERALL.split("{theme}")[1][:60]
    for shaped in (True, False):
        for _ in range(200):
            panel = random_panel(rng)
            taught = two_pictures(panel, random_panel(rng), "a theme", rng, traits=TRAITS, shaped=shaped, bare=False)
            for turn in (*taught.turns, *one_picture(panel, rng).turns):
                assert start not in turn.question
                assert "logic and identity" not in turn.question


def test_of_an_edit_one_trait_at_a_time_is_asked_and_never_the_questions_of_the_reward() -> None:
    rng = random.Random(5)
    cases: set[tuple[bool, bool]] = set()
    for _ in range(300):
        edit = edited_panel(random_panel(rng), rng)
        turns = sorted(about_an_edit(edit, rng, bare=False).turns, key=lambda turn: "asks for" not in turn.question)
        heeded, *consistency_turns = turns
        assert heeded.answer.startswith("Yes." if edit.followed else "No.")
        for turn in turns:
            assert f"Instruction: '{edit.instruction}'. " in turn.question
            assert "remain consistent" not in turn.question and "accurately follow" not in turn.question
        turns_by_trait = {
            next(t for t in TRAITS if f" {NOUNS[t]} " in t_.question.split("'. ")[1].replace("?", " ")): t_
            for t_ in consistency_turns
        }
        assert len(turns_by_trait) == 2 and edit.trait not in turns_by_trait
        for other, turn in turns_by_trait.items():
            is_equal = getattr(edit.before, other) == getattr(edit.after, other)
            assert turn.answer.startswith("Yes." if is_equal else "No.")
        cases.add((edit.followed, is_equal))
    assert len(cases) == 4


def test_claims_about_one_picture_are_judged_by_what_it_shows() -> None:
    rng = random.Random(3)
    judged = 0
    for _ in range(200):
        panel = random_panel(rng)
        for turn in one_picture(panel, rng).turns:
            label, _, reason = turn.answer.partition(" It is ")
            if label in {"Yes.", "No."}:
                judged += 1
                truth = reason.rstrip(".")
                assert truth in {getattr(panel, trait) for trait in TRAITS}
                assert (label == "Yes.") is (f" {truth}" in turn.question)
    assert judged > 100
