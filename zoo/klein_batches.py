"""Training batches of the small FLUX.2 [klein]: sets, edits, panels of stories, edits with a second image."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch

from paco_core.storybook.prompts import KINDS, character, compose_storybook_prompt, panel_text, random_set
from paco_core.storybook.world import SHARED_TRAITS, VOCABULARY, Panel
from zoo.edits import FAMILY, TRAITS, EditFamily, EditPool, bit
from zoo.flux import CONSISTENT_SHARE, LatentPool, perturbed_panels
from zoo.klein_reader import EDIT_LENGTH, PAINT_LENGTH, PANEL_LENGTH

SIZE = 64  # of the generated images, in pixels
PANEL = SIZE // 2  # of a set
SHARED = [bit(trait) for trait in SHARED_TRAITS]
UNSHARED = [0, bit("scene"), bit("size"), bit("scene") | bit("size")]
MOST_BEFORE = 4  # maximum earlier panels as references of a panel, the limit of the family


@dataclass(frozen=True)
class KleinBatch:
    """N images of one task: prompts, a map (N, 64, 4, 4) for each reference, target maps, tokens per prompt."""

    prompts: list[str]
    references: list[torch.Tensor]
    targets: torch.Tensor
    window: int


@dataclass(frozen=True)
class Pools:
    """Encoded drawings: panels of sets, and families of edits."""

    panels: LatentPool
    edits: EditPool


def set_batch(pools: Pools, count: int, rng: random.Random) -> KleinBatch:
    """2x2 sets, half of which stray from their prompt."""
    prompt_panels = [random_set(rng.randrange(len(KINDS)), 4, rng) for _ in range(count)]
    targets = [
        pools.panels.grid(PANEL, perturbed_panels(panels, rng, CONSISTENT_SHARE), rng) for _, panels in prompt_panels
    ]
    prompts = [compose_storybook_prompt(panels, "2x2", kind).prompt for kind, panels in prompt_panels]
    return KleinBatch(prompts, [], torch.stack(targets), PAINT_LENGTH)


def edits(pools: Pools, count: int, rng: random.Random) -> KleinBatch:
    """Panels with one changed trait, as for the other editors of the zoo."""
    batch = pools.edits.batch(SIZE, count, rng)
    return KleinBatch(batch.instructions, [batch.reference["latents"]], batch.targets, EDIT_LENGTH)


def story_batch(pools: Pools, count: int, rng: random.Random) -> KleinBatch:
    """A panel of a story with those before it: one character, scenes and sizes that differ.

    In half of the stories some panels are off in a shared trait.
    """
    before = rng.randint(0, MOST_BEFORE)
    families, latents = pools.edits.families[SIZE], pools.edits.encoded[SIZE]["latents"]
    prompts, places = [], []
    for _ in range(count):
        number, character = rng.randrange(len(families)), rng.randrange(FAMILY)
        story_bits = [character ^ rng.choice(UNSHARED) for _ in range(before + 1)]
        strays = rng.random() >= CONSISTENT_SHARE
        target_bits = [bits ^ (rng.choice(SHARED) if strays and rng.random() < 0.5 else 0) for bits in story_bits]
        prompts.append(story_text(families[number].panel(story_bits[-1])))
        places.append([(number, bits) for bits in target_bits])
    *references, last = (
        latents[[number for number, _ in column], [bits for _, bits in column]].float()
        for column in zip(*places, strict=True)
    )
    return KleinBatch(prompts, references, last, PANEL_LENGTH)


def story_text(panel: Panel) -> str:
    """The text of a story's panel: the shared traits of all panels, then its own sentence."""
    return f"All images show {character(panel)} in {panel.style} style. {panel_text(panel)}"


def second_reference_batch(pools: Pools, count: int, rng: random.Random) -> KleinBatch:
    """Panels that get one trait from a second image."""
    families, latents = pools.edits.families[SIZE], pools.edits.encoded[SIZE]["latents"]
    prompts, starts, references, ends = [], [], [], []
    for _ in range(count):
        number, start, trait = rng.randrange(len(families)), rng.randrange(FAMILY), rng.choice(TRAITS)
        end = start ^ bit(trait)
        prompts.append(instruction(trait, families[number].panel(start).species))
        starts.append((number, start))
        references.append(_showing(families, trait, getattr(families[number].panel(end), trait), rng))
        ends.append((number, end))
    first, second, targets = (
        latents[[number for number, _ in column], [bits for _, bits in column]].float()
        for column in (starts, references, ends)
    )
    return KleinBatch(prompts, [first, second], targets, EDIT_LENGTH)


def _showing(families: Sequence[EditFamily], trait: str, word: str, rng: random.Random) -> tuple[int, int]:
    """Family and member of a random panel with this word for a trait."""
    place = TRAITS.index(trait)
    number = rng.choice([n for n, family in enumerate(families) if word in family.words[place]])
    member = rng.randrange(FAMILY) & ~bit(trait)
    return number, member | bit(trait) * families[number].words[place].index(word)


def instruction(trait: str, species: str) -> str:
    """Instruction to copy a trait from a second image."""
    return {
        "species": f"Replace the {species} with the animal of the second picture.",
        "colour": f"Change the colour of the {species} to that of the second picture.",
        "accessory": f"Give the {species} the accessory of the second picture.",
        "size": f"Give the {species} the size of the second picture.",
        "scene": f"Show the {species} in the scene of the second picture.",
        "style": "Redraw the picture in the style of the second picture.",
    }[trait]


def second_instructions() -> list[str]:
    """All instructions to copy a trait from a second image."""
    return [instruction(trait, species) for trait, species in product(TRAITS, VOCABULARY["species"])]


Make = Callable[[Pools, int, random.Random], KleinBatch]
#: Batch function, images per batch, and share of the steps, for each of the three phases.
FIRST: tuple[tuple[Make, int, float], ...] = ((set_batch, 20, 0.55), (edits, 24, 0.45))
THEN: tuple[tuple[Make, int, float], ...] = (
    (set_batch, 20, 0.15),
    (edits, 40, 0.5),
    (story_batch, 16, 0.2),
    (second_reference_batch, 24, 0.15),
)
LAST: tuple[tuple[Make, int, float], ...] = (
    (set_batch, 20, 0.15),
    (edits, 40, 0.6),
    (story_batch, 16, 0.15),
    (second_reference_batch, 24, 0.1),
)
