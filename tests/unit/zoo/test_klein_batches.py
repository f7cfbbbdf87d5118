"""Batches of the small klein: what is asked, what it is painted from, and what is painted."""

from __future__ import annotations

import random

import pytest
import torch

from paco_core.data.records.records import panel_texts
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


def panels_of(pools: Pools, maps: torch.Tensor) -> list[tuple[int, Panel]]:
    """Family and panel of each picture."""
    codes = [divmod(int(code), FAMILY) for code in maps.flatten()]
    return [(number, pools.edits.families[SIZE][number].panel(bits)) for number, bits in codes]


def test_an_edit_takes_one_trait_of_the_second_picture_and_keeps_the_others(pools: Pools) -> None:
    batch = klein_batches.second_reference_batch(pools, 200, random.Random(1))
    first, second, targets = (panels_of(pools, maps) for maps in (*batch.references, batch.targets))
    traits = set()
    for text, (family, before), (_, other), (target_family, after) in zip(
        batch.prompts, first, second, targets, strict=True
    ):
        (trait,) = [name for name in VOCABULARY if getattr(before, name) != getattr(after, name)]
        assert family == target_family, "the character stays in its place"
        assert getattr(after, trait) == getattr(other, trait)
        assert text == klein_batches.instruction(trait, before.species) and "second picture" in text
        traits.add(trait)
    assert traits == set(VOCABULARY)


def test_a_panel_of_a_story_comes_with_those_before_it(pools: Pools) -> None:
    counts, consistent, num_panels = set(), 0, 0
    for seed in range(30):
        batch = klein_batches.story_batch(pools, 8, random.Random(seed))
        counts.add(len(batch.references))
        columns = [panels_of(pools, maps) for maps in (*batch.references, batch.targets)]
        for text, *panels in zip(batch.prompts, *columns, strict=True):
            assert len({family for family, _ in panels}) == 1
            num_panels += 1
            consistent += not any(differing_traits(panels[0][1], panel) for _, panel in panels)
            assert sum(getattr(panels[-1][1], trait) not in text for trait in ("species", "colour")) <= 1
            assert panels[-1][1].scene in text and panels[-1][1].size in text, "only shared traits stray"
    assert counts == set(range(MOST_BEFORE + 1))
    assert 0.5 < consistent / num_panels < 0.9


def test_the_text_of_a_panel_is_what_a_story_is_painted_from() -> None:
    prompts = storybook_prompts(6, 3, "2x3")
    for prompt, record in zip(prompts, records_of(prompts), strict=True):
        assert panel_texts(record) == [klein_batches.story_text(panel) for panel in prompt.panels]


@pytest.mark.parametrize("make", [klein_batches.story_batch, klein_batches.second_reference_batch, klein_batches.edits])
def test_every_text_fits_its_window_and_has_no_unknown_word(pools: Pools, make: klein_batches.Make) -> None:
    tokenizer = klein_reader.build_tokenizer(klein_batches.second_instructions())
    batch: KleinBatch = make(pools, 200, random.Random(2))
    words = klein_reader.tokenise(tokenizer, batch.prompts, batch.window)
    assert tokenizer.unk_token_id not in words.input_ids
    assert (words.input_ids == tokenizer.eos_token_id).any(1).all(), "the closing token is cut last"
