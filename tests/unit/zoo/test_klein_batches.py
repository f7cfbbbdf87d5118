"""Batches of the small klein: what is asked, what it is painted from, and what is painted."""

from __future__ import annotations

import random

import pytest
import torch

from paco_core.grpo.sampling import panel_texts
from paco_core.storybook.prompts import storybook_prompts
from paco_core.storybook.world import VOCABULARY, Panel, differing_traits
from tests.support.fixture_project import records_of
from zoo import klein_batches, klein_reader
from zoo.edits import FAMILY, EditFamily, EditPool
from zoo.klein_batches import MOST_BEFORE, SIZE, KleinBatch, Pools

FAMILIES = 40


@pytest.fixture(scope="module")
def pools() -> Pools:
    """Families in which each picture is one number: which one it is."""
    rng = random.Random(3)
    families = [EditFamily.draw_words(rng) for _ in range(FAMILIES)]
    codes = torch.arange(FAMILIES * FAMILY, dtype=torch.float32).reshape(FAMILIES, FAMILY, 1, 1, 1)
    return Pools(None, EditPool({SIZE: families}, {SIZE: {"latents": codes}}))  # type: ignore[arg-type]


def shown(pools: Pools, maps: torch.Tensor) -> list[tuple[int, Panel]]:
    """Family and panel of each picture."""
    codes = [divmod(int(code), FAMILY) for code in maps.flatten()]
    return [(number, pools.edits.families[SIZE][number].panel(bits)) for number, bits in codes]


def test_an_edit_takes_one_trait_of_the_second_picture_and_keeps_the_others(pools: Pools) -> None:
    batch = klein_batches.seconds(pools, 200, random.Random(1))
    first, second, painted = (shown(pools, maps) for maps in (*batch.references, batch.painted))
    seen = set()
    for text, (family, before), (_, other), (same, after) in zip(batch.prompts, first, second, painted, strict=True):
        (trait,) = [name for name in VOCABULARY if getattr(before, name) != getattr(after, name)]
        assert family == same, "the character stays in its place"
        assert getattr(after, trait) == getattr(other, trait)
        assert text == klein_batches.instruction(trait, before.species) and "second picture" in text
        seen.add(trait)
    assert seen == set(VOCABULARY)


def test_a_panel_of_a_story_comes_with_those_before_it(pools: Pools) -> None:
    counts, consistent, drawn = set(), 0, 0
    for seed in range(30):
        batch = klein_batches.stories(pools, 8, random.Random(seed))
        counts.add(len(batch.references))
        columns = [shown(pools, maps) for maps in (*batch.references, batch.painted)]
        for text, *panels in zip(batch.prompts, *columns, strict=True):
            assert len({family for family, _ in panels}) == 1
            drawn += 1
            consistent += not any(differing_traits(panels[0][1], panel) for _, panel in panels)
            assert sum(getattr(panels[-1][1], trait) not in text for trait in ("species", "colour")) <= 1
            assert panels[-1][1].scene in text and panels[-1][1].size in text, "only shared traits stray"
    assert counts == set(range(MOST_BEFORE + 1))
    assert 0.5 < consistent / drawn < 0.9


def test_the_text_of_a_panel_is_what_a_story_is_painted_from() -> None:
    made = storybook_prompts(6, 3, "2x3")
    for one, record in zip(made, records_of(made), strict=True):
        assert panel_texts(record) == [klein_batches.story_text(panel) for panel in one.panels]


@pytest.mark.parametrize("make", [klein_batches.stories, klein_batches.seconds, klein_batches.edits])
def test_every_text_fits_its_window_and_has_no_unknown_word(pools: Pools, make: klein_batches.Make) -> None:
    tokenizer = klein_reader.build_tokenizer(klein_batches.second_instructions())
    batch: KleinBatch = make(pools, 200, random.Random(2))
    words = klein_reader.tokenise(tokenizer, batch.prompts, batch.window)
    assert tokenizer.unk_token_id not in words.input_ids
    assert (words.input_ids == tokenizer.eos_token_id).any(1).all(), "the closing token is cut last"
