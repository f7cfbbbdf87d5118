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
UNTOUCHED = 0.8  # share of unheeded edits that do not change the requested trait
UNEDITED_TRAITS = (*SHARED_TRAITS, "scene")  # traits that an edit must not change, except its own


@dataclass(frozen=True)
class Edit:
    """An edit: its instruction, and the panels before and after it."""

    before: Panel
    after: Panel
    trait: str  # the one that the instruction names
    word: str = ""  # requested word of the trait; empty: the word of ``after``

    @property
    def requested_word(self) -> str:
        return self.word or str(getattr(self.after, self.trait))

    @property
    def target(self) -> Panel:
        """The panel after a perfect edit."""
        return self.before.with_trait(self.trait, self.requested_word)

    @property
    def instruction(self) -> str:
        word = self.requested_word
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
        """Whether the trait has the requested word."""
        return bool(getattr(self.after, self.trait) == self.requested_word)

    @property
    def unrequested_changes(self) -> list[str]:
        """Traits of :data:`UNEDITED_TRAITS` that changed although the instruction is about another trait."""
        return [t for t in UNEDITED_TRAITS if t != self.trait and getattr(self.before, t) != getattr(self.after, t)]

    def answer(self, question: EditQuestion = "edit_consistency") -> str:
        """The true answer to a question: its label and the reasons."""
        return self._following() if question == "edit_following" else self._consistency()

    def _consistency(self) -> str:
        if self.unrequested_changes:
            changes = (
                f"The {NOUNS[t]} changed without being asked for: {getattr(self.before, t)} and "
                f"{getattr(self.after, t)}."
                for t in self.unrequested_changes[:3]
            )
            return " ".join(["No.", *changes])
        nouns = [NOUNS[t] for t in SHARED_TRAITS if t != self.trait]
        stayed = f"The {', the '.join(nouns[:-1])} and the {nouns[-1]} stayed the same."
        if not self.followed:
            return f"Yes. {stayed}"
        return f"Yes. Only the {NOUNS[self.trait]} changed, as the instruction asks. {stayed}"

    def _following(self) -> str:
        noun, word = NOUNS[self.trait], getattr(self.after, self.trait)
        if self.followed:
            return f"Yes. The {noun} is {word}, as the instruction asks."
        return f"No. The {noun} is {word}, not {self.requested_word}."

    def draw(self, size: int, seed: int) -> tuple[Image, Image]:
        """Both pictures, ``size`` x ``size`` pixels, with the character in the same place."""
        return draw(self.before, size, random.Random(seed)), draw(self.after, size, random.Random(seed))


def random_edit(rng: random.Random, *, broken: bool = False, unheeded: bool = False) -> Edit:
    """An edit of a random trait of a random panel.

    Args:
        broken: also change a trait that the instruction does not mention.
        unheeded: do not give the trait its requested word.
    """
    before = random_panel(rng)
    trait = rng.choice(list(VOCABULARY))
    target = change_trait(before, trait, rng)
    word, after = str(getattr(target, trait)), target
    if unheeded:
        after = before if rng.random() < UNTOUCHED else change_trait(before, trait, rng, word)
    if broken:
        after = change_trait(after, rng.choice([t for t in UNEDITED_TRAITS if t != trait]), rng)
    return Edit(before, after, trait, word)


def change_trait(panel: Panel, trait: str, rng: random.Random, *also_not: str) -> Panel:
    """The panel with another word for a trait, which is not in ``also_not``."""
    words = [word for word in VOCABULARY[trait] if word not in (getattr(panel, trait), *also_not)]
    return panel.with_trait(trait, rng.choice(words))
