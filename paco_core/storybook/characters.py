"""Characters of the storybook world: reference images of a character, and panels that show it or do not show it.

The identity of a character is its species, color and accessory. A panel of a story shows it in another scene, size and
place, and in the style of the references.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import ImageEnhance

from paco_core.config.params import CharacterKind
from paco_core.storybook.drawing import draw, draw_scene
from paco_core.storybook.prompts import NAMES, character
from paco_core.storybook.world import IDENTITY, VOCABULARY, Panel, random_panel

if TYPE_CHECKING:
    from PIL.Image import Image

CHARACTER_NAMES = ("Ada", "Ben", "Ivy", "Leo", "Mia", "Sam", "Tom", "Zoe")
SCENE_OF_REFERENCE = 0.3  # share of panels whose scene is that of a reference image
EXACT_COPY = 0.5  # share of copies whose pixels are not changed
CROP = (0.02, 0.06)  # share of each side that a changed copy loses
BRIGHTNESS = (0.85, 1.15)  # factor of a changed copy


@dataclass(frozen=True)
class DrawnCase:
    """A character's images and one panel, as traits.

    Attributes:
        panel: the traits of the panel. If no character is in it (``absent``), only its scene and style count.
        copied: position of the reference image that the panel copies, for the kind ``copy``.
        motion: seed of the places of the character, and of the changes of a copy.
    """

    name: str
    kind: CharacterKind
    references: tuple[Panel, ...]
    panel: Panel
    copied: int
    motion: int

    @property
    def identity(self) -> str:
        """The character of the references in words, for example "a red cat with a scarf"."""
        return character(self.references[0])

    def draw(self, size: int) -> tuple[list[Image], Image]:
        """The reference images and the panel, ``size`` x ``size`` pixels."""
        rng = random.Random(self.motion)
        references = [draw(reference, size, rng) for reference in self.references]
        if self.kind == "copy":
            return references, _copied(references[self.copied], rng)
        if self.kind == "absent":
            return references, draw_scene(self.panel.scene, self.panel.style, size)
        return references, draw(self.panel, size, rng)

    def answers(self) -> list[str]:
        """The true answer for each reference image: its label and the reasons.

        A copy of one image is a new picture of the character in comparison with its other images.
        """
        return [self._answer(number) for number in range(len(self.references))]

    def _answer(self, number: int) -> str:
        if self.kind == "absent":
            return "No. The second image shows no animal."
        is_copy = self.kind == "copy" and number == self.copied
        return character_answer(self.references[number], self.panel, copy=is_copy)


def character_answer(reference: Panel, panel: Panel, *, copy: bool = False) -> str:
    """The true answer whether a panel is a new picture of the character of a reference image.

    Args:
        copy: whether the panel is a copy of the reference image.
    """
    if copy:
        return "No. The second image is a copy of the first image."
    differing = [trait for trait in IDENTITY if getattr(reference, trait) != getattr(panel, trait)]
    if not differing:
        return f"Yes. Both show {character(reference)}."
    reasons = (
        f"The {NAMES[trait]} differs: {getattr(reference, trait)} and {getattr(panel, trait)}." for trait in differing
    )
    return " ".join(["No.", *reasons])


def random_case(kind: CharacterKind, references: int, rng: random.Random) -> DrawnCase:
    """A random case of a kind, with this number of reference images."""
    first = random_panel(rng)
    scenes = rng.sample(VOCABULARY["scene"], references)
    pictures = tuple(move_character(first, scene, rng) for scene in scenes)
    copied = rng.randrange(references)
    panel = pictures[copied] if kind == "copy" else _new_picture(_subject(kind, first, rng), pictures, rng)
    return DrawnCase(rng.choice(CHARACTER_NAMES), kind, pictures, panel, copied, rng.randrange(1 << 30))


def with_identity(panel: Panel, words: Sequence[str]) -> Panel:
    """The panel with another character: one word per trait of ``IDENTITY``."""
    for trait, word in zip(IDENTITY, words, strict=True):
        panel = panel.with_trait(trait, word)
    return panel


def move_character(panel: Panel, scene: str, rng: random.Random) -> Panel:
    """The character of a panel in another scene, at a random size."""
    return panel.with_trait("scene", scene).with_trait("size", rng.choice(VOCABULARY["size"]))


def _subject(kind: CharacterKind, first: Panel, rng: random.Random) -> Panel:
    """The character that a panel of this kind shows, in the style of ``first``."""
    if kind == "swapped":  # the other main character of a story is another animal
        animals = [species for species in VOCABULARY["species"] if species != first.species]
        return random_panel(rng).with_trait("species", rng.choice(animals)).with_trait("style", first.style)
    if kind != "other_character":
        return first
    if rng.random() < 0.5:  # a drift of a generator: one trait of the character changed
        trait = rng.choice(IDENTITY)
        return first.with_trait(trait, rng.choice([w for w in VOCABULARY[trait] if w != getattr(first, trait)]))
    while True:
        other = random_panel(rng).with_trait("style", first.style)
        if any(getattr(other, trait) != getattr(first, trait) for trait in IDENTITY):
            return other


def _new_picture(subject: Panel, references: Sequence[Panel], rng: random.Random) -> Panel:
    """The subject in a scene and size that no reference image has together."""
    scene = rng.choice(references).scene if rng.random() < SCENE_OF_REFERENCE else rng.choice(VOCABULARY["scene"])
    used = {reference.size for reference in references if reference.scene == scene}
    return subject.with_trait("scene", scene).with_trait(
        "size", rng.choice([size for size in VOCABULARY["size"] if size not in used])
    )


def _copied(reference: Image, rng: random.Random) -> Image:
    """The reference image with equal pixels, or cropped a little and brighter or darker."""
    if rng.random() < EXACT_COPY:
        return reference.copy()
    margin = rng.uniform(*CROP)
    left, top = (rng.uniform(0, margin) for _ in range(2))
    width, height = reference.size
    box = (left * width, top * height, (1 - margin + left) * width, (1 - margin + top) * height)
    cropped = reference.resize(reference.size, box=box)
    return ImageEnhance.Brightness(cropped).enhance(rng.uniform(*BRIGHTNESS))
