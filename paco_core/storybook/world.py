"""The attributes of the storybook world: what can be drawn, asked for, and recognised.

A *panel* is one small picture: a character (species, colour, accessory, size) in a scene, drawn in
a style. A *set* is a grid of panels that show one character. Identity is species, colour and
accessory; style is the drawing style; logic is the order of sizes in a growth set. Scene and size
may differ between the panels of a consistent set; the shared traits may not.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal, get_args

Species = Literal["cat", "rabbit", "bear", "frog", "chick", "elephant"]
Colour = Literal["red", "yellow", "green", "blue", "purple", "white"]
Accessory = Literal["nothing", "hat", "scarf", "balloon"]
Size = Literal["small", "medium", "big"]
Scene = Literal["beach", "forest", "night", "snow", "desert", "city"]
Style = Literal["flat", "outline", "pixel", "crayon"]

VOCABULARY: dict[str, tuple[str, ...]] = {
    "species": get_args(Species),
    "colour": get_args(Colour),
    "accessory": get_args(Accessory),
    "size": get_args(Size),
    "scene": get_args(Scene),
    "style": get_args(Style),
}

#: Traits that every panel of a consistent set shares, with the dimension that each belongs to.
SHARED_TRAITS: dict[str, str] = {
    "species": "Identity",
    "colour": "Identity",
    "accessory": "Identity",
    "style": "Style",
}
#: Traits by which a character is recognized in each scene, size and style.
IDENTITY = tuple(trait for trait, dimension in SHARED_TRAITS.items() if dimension == "Identity")


@dataclass(frozen=True)
class Panel:
    """Attributes of one picture; every field is a word of :data:`VOCABULARY`."""

    species: Species
    colour: Colour
    accessory: Accessory
    size: Size
    scene: Scene
    style: Style

    def __post_init__(self) -> None:
        for trait, words in VOCABULARY.items():
            if getattr(self, trait) not in words:
                raise ValueError(f"storybook has no {trait} {getattr(self, trait)!r}; choose one of {', '.join(words)}")

    def with_trait(self, trait: str, word: str) -> Panel:
        """A copy with one attribute changed."""
        return replace(self, **{trait: word})  # type: ignore[arg-type]


def random_panel(rng: random.Random) -> Panel:
    """A panel with every attribute drawn independently and uniformly."""
    return Panel(**{trait: rng.choice(words) for trait, words in VOCABULARY.items()})  # type: ignore[arg-type]


def differing_traits(first: Panel, second: Panel) -> list[str]:
    """Shared traits in which two panels of one set disagree (empty = a consistent pair)."""
    return [trait for trait in SHARED_TRAITS if getattr(first, trait) != getattr(second, trait)]
