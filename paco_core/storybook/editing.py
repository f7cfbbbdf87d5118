"""Edits of the storybook world: a panel, an instruction, and the panel after it.

A good edit does what was asked and nothing else. A broken one changes another trait as well, unasked; an unheeded
one leaves the asked trait as it was, or changes it to another word.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paco_core.config.params import EditQuestion
from paco_core.storybook.drawing import draw
from paco_core.storybook.prompts import NAMES, PLACES
from paco_core.storybook.world import SHARED_TRAITS, VOCABULARY, Panel, random_panel

if TYPE_CHECKING:
    from PIL.Image import Image

NOUNS = {**NAMES, "scene": "scene", "size": "size"}
UNTOUCHED = 0.8  # share of unheeded edits that leave the asked trait as it was
KEPT = (*SHARED_TRAITS, "scene")  # what an edit must leave as it was, unless it is asked to change it


@dataclass(frozen=True)
class Edit:
    """What an edit asks for and what it did."""

    before: Panel
    after: Panel
    trait: str  # the one that the instruction names
    word: str = ""  # what it was asked to become; empty: what it became

    @property
    def asked(self) -> str:
        return self.word or str(getattr(self.after, self.trait))

    @property
    def target(self) -> Panel:
        """The panel that the instruction asks for."""
        return self.before.with_trait(self.trait, self.asked)

    @property
    def instruction(self) -> str:
        word = self.asked
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
    def followed(self) -> bool:
        """Whether the asked trait is as it was asked for."""
        return bool(getattr(self.after, self.trait) == self.asked)

    @property
    def unasked(self) -> list[str]:
        """Traits of :data:`KEPT` that changed without being asked for."""
        return [t for t in KEPT if t != self.trait and getattr(self.before, t) != getattr(self.after, t)]

    def answer(self, question: EditQuestion = "edit_consistency") -> str:
        """The label of a question with its reasons: what a perfect annotator would write."""
        return self._following() if question == "edit_following" else self._consistency()

    def _consistency(self) -> str:
        if self.unasked:
            changes = (
                f"The {NOUNS[t]} changed without being asked for: {getattr(self.before, t)} and "
                f"{getattr(self.after, t)}."
                for t in self.unasked[:3]
            )
            return " ".join(["No.", *changes])
        kept = [NOUNS[t] for t in SHARED_TRAITS if t != self.trait]
        stayed = f"The {', the '.join(kept[:-1])} and the {kept[-1]} stayed the same."
        if not self.followed:
            return f"Yes. {stayed}"
        return f"Yes. Only the {NOUNS[self.trait]} changed, as the instruction asks. {stayed}"

    def _following(self) -> str:
        noun, shown = NOUNS[self.trait], getattr(self.after, self.trait)
        if self.followed:
            return f"Yes. The {noun} is {shown}, as the instruction asks."
        return f"No. The {noun} is {shown}, not {self.asked}."

    def draw(self, size: int, seed: int) -> tuple[Image, Image]:
        """Both pictures, ``size`` x ``size`` pixels, the character in the same place."""
        return draw(self.before, size, random.Random(seed)), draw(self.after, size, random.Random(seed))


def random_edit(rng: random.Random, *, broken: bool = False, unheeded: bool = False) -> Edit:
    """An edit of a random trait of a random panel."""
    before = random_panel(rng)
    trait = rng.choice(list(VOCABULARY))
    asked = changed(before, trait, rng)
    word, after = str(getattr(asked, trait)), asked
    if unheeded:
        after = before if rng.random() < UNTOUCHED else changed(before, trait, rng, word)
    if broken:
        after = changed(after, rng.choice([t for t in KEPT if t != trait]), rng)
    return Edit(before, after, trait, word)


def changed(panel: Panel, trait: str, rng: random.Random, *also_not: str) -> Panel:
    """The panel with another word for a trait; none of ``also_not``."""
    others = [word for word in VOCABULARY[trait] if word not in (getattr(panel, trait), *also_not)]
    return panel.with_trait(trait, rng.choice(others))
