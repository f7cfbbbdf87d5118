"""Edit metrics: the recognizer's readings of edits and stories of unseen panels, by the editors of the zoo."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from paco_core.data.prompts.prompts import storybook_record
from paco_core.data.records.panels import split_grid
from paco_core.grpo.encoded_prompts import EncodedPrompts
from paco_core.grpo.rollout import Sampling, rollout
from paco_core.grpo.sampling import sample_images
from paco_core.grpo.sizes import ImageGrid
from paco_core.policies.base import NoiseKey
from paco_core.storybook.drawing import draw
from paco_core.storybook.editing import Edit, change_trait, random_edit
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


def measure_editor(
    policy: Policy, recogniser: Path, guidance: float, length: int, sizes: Sequence[int] = SIZES
) -> dict[str, float]:
    """Means at each size: share of correct edits without other changes, share of correct edits, share of other traits
    kept.
    """
    edits = unseen_edits()
    reader = Recogniser.from_pretrained(recogniser)
    metrics: dict[str, float] = {}
    for size in sizes:
        references = [edit.draw(size, SEED + n)[0] for n, edit in enumerate(edits)]
        images = generate_images(policy, [edit.instruction for edit in edits], references, size, guidance, length)
        metrics |= edit_means(evaluate_edits(reader, edits, images), "gold", size)
    return metrics


def edit_means(edits: Sequence[GoldEdit], prefix: str, size: int) -> dict[str, float]:
    """Means over edits of ``size`` px: correct without other changes, correct, share of other traits kept."""
    means = {
        "editing": mean(edit.editing for edit in edits),
        "reached": mean(edit.reached for edit in edits),
        "kept": mean(edit.unchanged for edit in edits),
    }
    return {f"{prefix}_{name}_{size}px": value for name, value in means.items()}


def evaluate_edits(reader: Recogniser, edits: Sequence[Edit], images: Sequence[Image]) -> list[GoldEdit]:
    """One evaluation per edit."""
    matched = zip(reader.read(images), edits, strict=True)
    return [gold_edit(read, edit.before, edit.trait, str(getattr(edit.after, edit.trait))) for read, edit in matched]


def generate_images(
    policy: Policy,
    instructions: Sequence[str],
    references: Sequence[References] | None,
    size: int,
    guidance: float,
    length: int,
) -> list[Image]:
    """One square image per instruction or prompt, by the ODE.

    Args:
        references: of each instruction. None: the prompts have no references.
    """
    square = (size, size)
    encoded = policy.encode(instructions, length, references, [[square]] * len(references or ()))
    sampling = Sampling.for_policy(policy, square, STEPS, guidance)
    images: list[Image] = []
    for start in range(0, len(instructions), BATCH):
        rows = range(start, min(start + BATCH, len(instructions)))
        keys = [NoiseKey(f"edit-{row}", 0, SEED) for row in rows]
        images += policy.decode(rollout(policy, encoded, rows, keys, sampling).latents, square)
    return images


STORY_SEED = 9_600
STORIES, LAYOUT = 24, "2x3"


def second_edits(count: int = COUNT, seed: int = STORY_SEED) -> list[tuple[Panel, Panel, str]]:
    """Panel to edit, panel with the new trait, and the trait, in which both panels differ."""
    rng, edits = random.Random(f"second-edits-{seed}"), []
    for _ in range(count):
        before, trait = random_panel(rng), rng.choice(list(VOCABULARY))
        word = getattr(change_trait(before, trait, rng), trait)
        edits.append((before, random_panel(rng).with_trait(trait, word), trait))
    return edits


def measure_second_reference(policy: Policy, recogniser: Path, guidance: float) -> dict[str, float]:
    """Means over edits that copy a trait from a second image: correct without other changes, correct, other traits
    kept.
    """
    edits = second_edits()
    references = [
        [draw(panel, SIZE, random.Random(f"{STORY_SEED}-{n}-{place}")) for place, panel in enumerate(panels)]
        for n, (*panels, _) in enumerate(edits)
    ]
    texts = [instruction(trait, before.species) for before, _, trait in edits]
    images = generate_images(policy, texts, references, SIZE, guidance, EDIT_LENGTH)
    read = Recogniser.from_pretrained(recogniser).read(images)
    judged = [
        gold_edit(reading, before, trait, getattr(other, trait))
        for reading, (before, other, trait) in zip(read, edits, strict=True)
    ]
    return edit_means(judged, "gold_second", SIZE)


def measure_stories(policy: Policy, recogniser: Path, guidance: float) -> dict[str, float]:
    """Mean gold consistency and following of six panels. Each panel is generated from the earlier ones."""
    story_prompts = storybook_prompts(STORIES, STORY_SEED, LAYOUT)
    records = [storybook_record(prompt, 2 * SIZE, 3 * SIZE) for prompt in story_prompts]
    prompts = EncodedPrompts.from_records(policy, records, MOST_BEFORE, PANEL_LENGTH, guidance)
    rows, page = range(STORIES), ImageGrid((2 * SIZE, 3 * SIZE), records[0].grid)
    sampling = Sampling.for_policy(policy, page.part_size, STEPS, guidance)
    keys = [NoiseKey(record.idx, 0, STORY_SEED) for record in records]
    images, _ = sample_images(policy, prompts, rows, keys, sampling, page)
    reader = Recogniser.from_pretrained(recogniser)
    read = [reader.read(split_grid(image, LAYOUT)) for image in images]
    following = [gold_following(readings, prompt.panels) for readings, prompt in zip(read, story_prompts, strict=True)]
    return {
        f"gold_story_consistency_{SIZE}px": sum(map(gold_consistency, read)) / STORIES,
        f"gold_story_following_{SIZE}px": sum(following) / STORIES,
    }
