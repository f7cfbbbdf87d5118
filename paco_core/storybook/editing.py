"""Edits of the storybook world: a panel, an instruction, and the panel after it, with nothing else changed.

A broken edit follows its instruction but changes a second shared trait as well, unasked.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paco_core.storybook.prompts import PLACES
from paco_core.storybook.reasons import NAMES
from paco_core.storybook.world import SHARED_TRAITS, VOCABULARY, Panel, random_panel

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Edit:
    """What an edit asks for and what it did."""

    before: Panel
    after: Panel
    trait: str  # the one that the instruction names

    @property
    def instruction(self) -> str:
        word = getattr(self.after, self.trait)
        if self.trait == "accessory":
            old = self.before.accessory
            if word == "nothing":
                return f"Take the {old} away."
            return f"Give the {self.before.species} a {word}" + ("." if old == "nothing" else f" instead of the {old}.")
        return {
            "species": f"Replace the {self.before.species} with a {word}.",
            "colour": f"Change the colour of the {self.before.species} to {word}.",
            "size": f"Make the {self.before.species} {word}.",
            "scene": f"Show the {self.before.species} {PLACES.get(word, word)} instead.",
            "style": f"Redraw the picture in {word} style.",
        }[self.trait]

    @property
    def unasked(self) -> list[str]:
        """Shared traits that changed without being asked for."""
        return [t for t in SHARED_TRAITS if t != self.trait and getattr(self.before, t) != getattr(self.after, t)]

    @property
    def answer(self) -> str:
        """Whether all but the edit stayed the same, and why: what a perfect annotator would write."""
        if self.unasked:
            changes = (
                f"The {NAMES[t]} changed without being asked for: {getattr(self.before, t)} and "
                f"{getattr(self.after, t)}."
                for t in self.unasked[:3]
            )
            return " ".join(["No.", *changes])
        kept = [NAMES[t] for t in SHARED_TRAITS if t != self.trait]
        return (
            f"Yes. Only the {NAMES.get(self.trait, self.trait)} changed, as the instruction asks. "
            f"The {', the '.join(kept[:-1])} and the {kept[-1]} stayed the same."
        )

    def draw(self, size: int, seed: int) -> tuple[Image, Image]:
        """Both pictures, ``size`` x ``size`` pixels, the character in the same place."""
        from paco_core.storybook.drawing import draw

        return draw(self.before, size, random.Random(seed)), draw(self.after, size, random.Random(seed))


def random_edit(rng: random.Random, *, broken: bool = False) -> Edit:
    """An edit of a random trait of a random panel."""
    before = random_panel(rng)
    trait = rng.choice(list(VOCABULARY))
    after = _changed(before, trait, rng)
    if broken:
        after = _changed(after, rng.choice([t for t in SHARED_TRAITS if t != trait]), rng)
    return Edit(before, after, trait)


def _changed(panel: Panel, trait: str, rng: random.Random) -> Panel:
    others = [word for word in VOCABULARY[trait] if word != getattr(panel, trait)]
    return panel.with_trait(trait, rng.choice(others))
