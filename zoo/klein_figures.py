"""What the recogniser sees in stories and in edits with a second picture, by the small FLUX.2 [klein]."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.data.prompts.prompts import storybook_record
from paco_core.data.records.subfigures import cut
from paco_core.grpo.rollout import Sampling
from paco_core.grpo.sampling import EncodedPrompts, sample_images
from paco_core.grpo.sizes import ImageGrid
from paco_core.policies.base import NoiseKey
from paco_core.storybook.drawing import draw
from paco_core.storybook.editing import changed
from paco_core.storybook.prompts import storybook_prompts
from paco_core.storybook.recogniser import Recogniser, gold_consistency, gold_edit, gold_following
from paco_core.storybook.world import VOCABULARY, Panel, random_panel
from zoo import edit_figures
from zoo.klein_batches import MOST_BEFORE, SIZE, instruction
from zoo.klein_reader import EDIT_LENGTH, PANEL_LENGTH

if TYPE_CHECKING:
    from paco_core.policies.base import Policy

COUNT, SEED = 96, 9_600
STORIES, LAYOUT = 24, "2x3"


def second_edits(count: int = COUNT, seed: int = SEED) -> list[tuple[Panel, Panel, str]]:
    """Panel to change, panel to take from, and the trait; the two differ in it."""
    rng, found = random.Random(f"second-edits-{seed}"), []
    for _ in range(count):
        before, trait = random_panel(rng), rng.choice(list(VOCABULARY))
        word = getattr(changed(before, trait, rng), trait)
        found.append((before, random_panel(rng).with_trait(trait, word), trait))
    return found


def seconds(policy: Policy, recogniser: Path, guidance: float) -> dict[str, float]:
    """Means over edits that take a trait from a second picture: made and nothing else; made; share of others kept."""
    asked = second_edits()
    references = [
        [draw(panel, SIZE, random.Random(f"{SEED}-{n}-{place}")) for place, panel in enumerate(both)]
        for n, (*both, _) in enumerate(asked)
    ]
    texts = [instruction(trait, before.species) for before, _, trait in asked]
    painted = edit_figures.paint(policy, texts, references, SIZE, guidance, EDIT_LENGTH)
    read = Recogniser.from_pretrained(recogniser).read(painted)
    judged = [
        gold_edit(one, before, trait, getattr(other, trait))
        for one, (before, other, trait) in zip(read, asked, strict=True)
    ]
    return {
        f"gold_second_{name}_{SIZE}px": sum(getattr(one, name) for one in judged) / COUNT
        for name in ("editing", "reached", "kept")
    }


def stories(policy: Policy, recogniser: Path, guidance: float) -> dict[str, float]:
    """Mean gold consistency and following of six panels, each painted from those before it."""
    asked = storybook_prompts(STORIES, SEED, LAYOUT)
    records = [storybook_record(one, 2 * SIZE, 3 * SIZE) for one in asked]
    prompts = EncodedPrompts.from_records(policy, records, MOST_BEFORE, PANEL_LENGTH, guidance)
    rows, page = range(STORIES), ImageGrid((2 * SIZE, 3 * SIZE), records[0].grid)
    sampling = Sampling.for_policy(policy, page.part_size, edit_figures.STEPS, guidance)
    keys = [NoiseKey(record.idx, 0, SEED) for record in records]
    images, _ = sample_images(policy, prompts, rows, keys, sampling, page)
    reader = Recogniser.from_pretrained(recogniser)
    read = [reader.read(cut(image, LAYOUT)) for image in images]
    following = [gold_following(own, one.panels) for own, one in zip(read, asked, strict=True)]
    return {
        f"gold_story_consistency_{SIZE}px": sum(map(gold_consistency, read)) / STORIES,
        f"gold_story_following_{SIZE}px": sum(following) / STORIES,
    }
