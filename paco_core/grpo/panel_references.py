"""Reference images of a story's panels: the images of the characters that a panel's text names, then earlier panels.

With ``panels: one_by_one``, all images of the named characters come first, in the order of the record. The latest
earlier panels follow, at most ``predecessors`` of them and as many as the family's limit leaves room for. Rollouts,
evaluations, benchmarks, `paco paint` and the plan all use this rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paco_core.data.records.characters import image_sizes, load_images
from paco_core.data.records.records import characters_of_panels
from paco_core.io.files import DataError
from paco_core.policies.families import StoryChoice, family_of, max_predecessors

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.data.records.characters import Character
    from paco_core.data.records.records import PromptRecord


def panel_references(
    characters: Sequence[Character], finished: Sequence[Image], predecessors: int, most: int
) -> list[Image]:
    """The reference images of one panel.

    Args:
        characters: those that the panel names.
        finished: the panels before it.
        predecessors: maximum number of these panels.
        most: maximum number of reference images of the family.

    Raises:
        DataError: if an image of a character is missing or damaged.
    """
    images = [image for character in characters for image in load_images(character)]
    count = _num_panels(len(images), len(finished), predecessors, most)
    return [*images, *finished[len(finished) - count :]]


def character_references(record: PromptRecord) -> list[Image]:
    """The images of all characters of a record, in its order.

    Raises:
        DataError: if an image is missing or damaged.
    """
    return [image for character in record.characters for image in load_images(character)]


def count_panel_references(record: PromptRecord, predecessors: int, most: int) -> list[int]:
    """Number of :func:`panel_references` of each panel of a record. Reads no image."""
    rows, columns = record.grid
    if not record.characters:
        return [_num_panels(0, part, predecessors, most) for part in range(rows * columns)]
    counts = [sum(len(c.images) for c in panel) for panel in characters_of_panels(record)]
    return [count + _num_panels(count, part, predecessors, most) for part, count in enumerate(counts)]


def _num_panels(num_images: int, num_finished: int, predecessors: int, most: int) -> int:
    return max(0, min(num_finished, predecessors, most - num_images))


def validate_panel_references(recipe: StoryChoice, record: PromptRecord) -> None:
    """Check that a recipe with ``panels: one_by_one`` can use the images of characters as reference images.

    Raises:
        DataError: with all panels that name characters with more images than the family accepts, and all images that
            are too small or too long for it.
    """
    if not record.characters or not max_predecessors(recipe):
        return
    family, problems = family_of(recipe.family), list[str]()
    for number, characters in enumerate(characters_of_panels(record), 1):
        count = sum(len(character.images) for character in characters)
        if count > (most := family.references[1]):
            names = ", ".join(character.name for character in characters)
            problems.append(
                f"panel {number} names {names} with {count} images, and the family {recipe.family} accepts at most "
                f"{most} reference images per panel; remove images, name fewer characters in the panel, or choose "
                "panels: together"
            )
    for place, character in enumerate(record.characters):
        for position, (width, height) in enumerate(image_sizes(character)):
            short, long = sorted((width, height))
            if short < family.min_reference_side or long > family.max_reference_ratio * short:
                problems.append(
                    f"{place}.images.{position} of {character.name} has {width} x {height} px; the family "
                    f"{recipe.family} needs reference images of at least {family.min_reference_side} px per side, "
                    f"whose longer side is at most {family.max_reference_ratio:g} times the shorter; scale or crop it"
                )
    if problems:
        raise DataError("; ".join(f"characters: {problem}" for problem in problems))
