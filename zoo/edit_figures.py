"""Edit metrics: what the recogniser sees in edits and stories of unseen panels, by the editors of the zoo."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.data.prompts.prompts import storybook_record
from paco_core.data.records.panels import cut
from paco_core.grpo.rollout import Sampling, rollout
from paco_core.grpo.sampling import EncodedPrompts, sample_images
from paco_core.grpo.sizes import ImageGrid
from paco_core.policies.base import NoiseKey
from paco_core.storybook.drawing import draw
from paco_core.storybook.editing import Edit, changed, random_edit
from paco_core.storybook.prompts import storybook_prompts
from paco_core.storybook.recogniser import GoldEdit, Recogniser, gold_consistency, gold_edit, gold_following
from paco_core.storybook.world import VOCABULARY, Panel, random_panel
from zoo.klein_batches import MOST_BEFORE, SIZE, instruction
from zoo.klein_reader import EDIT_LENGTH, PANEL_LENGTH

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.policies.base import Policy, References


COUNT, SEED, STEPS, BATCH = 96, 9_500, 10, 32
SIZES = (64, 128)


def unseen_edits(count: int = COUNT, seed: int = SEED) -> list[Edit]:
    """Edits of any panel; the editors' training drew from families of their own."""
    rng = random.Random(f"unseen-edits-{seed}")
    return [random_edit(rng) for _ in range(count)]


def figures(
    policy: Policy, recogniser: Path, guidance: float, length: int, sizes: Sequence[int] = SIZES
) -> dict[str, float]:
    """Means at each size: the edit was made and nothing else; it was made at all; share of other traits kept."""
    edits = unseen_edits()
    reader = Recogniser.from_pretrained(recogniser)
    found: dict[str, float] = {}
    for size in sizes:
        references = [edit.draw(size, SEED + n)[0] for n, edit in enumerate(edits)]
        painted = paint(policy, [edit.instruction for edit in edits], references, size, guidance, length)
        judged = judge(reader, edits, painted)
        for name in ("editing", "reached", "kept"):
            found[f"gold_{name}_{size}px"] = sum(getattr(one, name) for one in judged) / len(judged)
    return found


def judge(reader: Recogniser, edits: Sequence[Edit], painted: Sequence[Image]) -> list[GoldEdit]:
    """One judgement an edit."""
    both = zip(reader.read(painted), edits, strict=True)
    return [gold_edit(read, edit.before, edit.trait, str(getattr(edit.after, edit.trait))) for read, edit in both]


def paint(
    policy: Policy,
    instructions: Sequence[str],
    references: Sequence[References],
    size: int,
    guidance: float,
    length: int,
) -> list[Image]:
    """One edit an instruction by the ODE."""
    square = (size, size)
    encoded = policy.encode(instructions, length, references, [[square]] * len(references))
    sampling = Sampling.for_policy(policy, square, STEPS, guidance)
    painted: list[Image] = []
    for start in range(0, len(references), BATCH):
        rows = range(start, min(start + BATCH, len(references)))
        keys = [NoiseKey(f"edit-{row}", 0, SEED) for row in rows]
        painted += policy.decode(rollout(policy, encoded, rows, keys, sampling).latents, square)
    return painted


STORY_SEED = 9_600
STORIES, LAYOUT = 24, "2x3"


def second_edits(count: int = COUNT, seed: int = STORY_SEED) -> list[tuple[Panel, Panel, str]]:
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
        [draw(panel, SIZE, random.Random(f"{STORY_SEED}-{n}-{place}")) for place, panel in enumerate(both)]
        for n, (*both, _) in enumerate(asked)
    ]
    texts = [instruction(trait, before.species) for before, _, trait in asked]
    painted = paint(policy, texts, references, SIZE, guidance, EDIT_LENGTH)
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
    asked = storybook_prompts(STORIES, STORY_SEED, LAYOUT)
    records = [storybook_record(one, 2 * SIZE, 3 * SIZE) for one in asked]
    prompts = EncodedPrompts.from_records(policy, records, MOST_BEFORE, PANEL_LENGTH, guidance)
    rows, page = range(STORIES), ImageGrid((2 * SIZE, 3 * SIZE), records[0].grid)
    sampling = Sampling.for_policy(policy, page.part_size, STEPS, guidance)
    keys = [NoiseKey(record.idx, 0, STORY_SEED) for record in records]
    images, _ = sample_images(policy, prompts, rows, keys, sampling, page)
    reader = Recogniser.from_pretrained(recogniser)
    read = [reader.read(cut(image, LAYOUT)) for image in images]
    following = [gold_following(own, one.panels) for own, one in zip(read, asked, strict=True)]
    return {
        f"gold_story_consistency_{SIZE}px": sum(map(gold_consistency, read)) / STORIES,
        f"gold_story_following_{SIZE}px": sum(following) / STORIES,
    }
