"""Prompts: they read back into the panels they ask for, and fit the text encoders."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paco_core.io.files import DataError
from paco_core.storybook.prompts import (
    KINDS,
    answer,
    compose_storybook_prompt,
    parse_storybook_prompt,
    random_set,
    storybook_prompts,
    true_reasons,
)
from paco_core.storybook.world import VOCABULARY, Panel, differing_traits
from zoo.text import MAX_LENGTH, build_tokenizer

panels = st.builds(Panel, **{trait: st.sampled_from(words) for trait, words in VOCABULARY.items()})
layouts = st.sampled_from(["2x2", "1x2", "1x3", "1x7", "2x1", "2x3", "3x2", "2x4", "3x3"])
kinds = st.integers(0, len(KINDS) - 1)


@settings(max_examples=300)
@given(kinds, layouts, st.integers(0, 2**32))
def test_a_prompt_reads_back_into_its_panels(kind: int, layout: str, seed: int) -> None:
    rows, columns = (int(n) for n in layout.split("x"))
    _, panels = random_set(kind, rows * columns, random.Random(seed))
    prompt = compose_storybook_prompt(panels, layout, kind)
    assert parse_storybook_prompt(prompt.prompt) == panels == list(prompt.panels)
    assert f"a {layout} grid layout" in prompt.prompt


@settings(max_examples=100)
@given(kinds, st.integers(0, 2**32))
def test_a_set_shares_what_a_consistent_set_shares(kind: int, seed: int) -> None:
    _, panels = random_set(kind, 4, random.Random(seed))
    assert not any(differing_traits(panels[0], panel) for panel in panels)
    if KINDS[kind][1] == "Growth":
        sizes = [VOCABULARY["size"].index(panel.size) for panel in panels]
        assert sizes == sorted(sizes) and sizes[0] < sizes[-1]


def test_prompts_are_stable_distinct_and_grow_by_appending() -> None:
    longer, shorter = storybook_prompts(60, seed=7), storybook_prompts(24, seed=7)
    assert longer[:24] == shorter
    assert len({prompt.idx for prompt in longer}) == 60
    assert {prompt.task_name for prompt in longer} == {task for _, task, _, _ in KINDS}
    assert storybook_prompts(3, seed=7) != storybook_prompts(3, seed=8)


def test_every_prompt_fits_the_encoders_and_its_tokens_tell_its_panels() -> None:
    """Words left out by the tokenizer carry nothing: the panels can be told from the tokens alone."""
    tokenizer = build_tokenizer()
    panels_of: dict[tuple[int, ...], tuple[Panel, ...]] = {}
    for prompt in storybook_prompts(400, seed=3):
        ids = tuple(tokenizer(prompt.prompt).input_ids)
        assert len(ids) <= MAX_LENGTH and tokenizer.unk_token_id not in ids
        assert panels_of.setdefault(ids, prompt.panels) == prompt.panels


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A red cat.", "marks no panel"),
        ("[TOP]-[LEFT]: a red cat on the beach, flat style.", "no size"),
        ("[PANEL-1]: a big red cat on the beach.", "no style"),
        ("[PANEL-1]: a big red cat and a green cat on the beach, flat style.", "red and green"),
    ],
)
def test_a_text_that_leaves_something_open_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_storybook_prompt(text)


@given(panels, panels)
def test_reasons_are_true_and_at_most_three(first: Panel, second: Panel) -> None:
    label, reasons = true_reasons(first, second)
    differing = differing_traits(first, second)
    assert label == ("No" if differing else "Yes")
    assert 1 <= len(reasons) <= 3
    assert answer(label, reasons).startswith(f"{label}. ")
    if differing:
        assert len(reasons) == min(3, len(differing))
        words = [str(getattr(panel, trait)) for trait in differing[:3] for panel in (first, second)]
        assert all(word in " ".join(reasons) for word in words)


def test_more_prompts_than_there_are_words_for_are_refused_at_once() -> None:
    with pytest.raises(DataError, match="prompts.count=20737: the storybook has 20736 different prompts"):
        storybook_prompts(20_737, 0)
