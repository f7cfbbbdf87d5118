"""Character pairs of generated stories: a JSON Lines file with one story per line.

{"characters": [{"name": "Mia", "images": ["mia_front.png", "mia_side.png"]}, {"name": "Fox", "images": ["fox.png"]}],
 "panels": [{"image": "panel1.png", "text": "Mia finds Fox."}, {"image": "panel2.png", "text": "An empty street."}]}

Paths are relative to the file. The text of a panel names the characters that the panel should show. If an annotator
knows better, ``shows`` lists the names of the characters that are in the panel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ConfigDict, Field, ValidationError, model_validator

from paco_core.config.params import CharacterKind
from paco_core.data.pairs.answers import NO, YES
from paco_core.data.pairs.characters import NEGATIVES, POSITIVE, CharacterPairs
from paco_core.data.records.characters import Character, load_images, named_characters
from paco_core.data.records.records import Characters, Words
from paco_core.data.seeds import random_key
from paco_core.io.files import DataError, inside, read_jsonl
from paco_core.io.pictures import content_and_size, read_image
from paco_core.io.rejected import Rejected
from paco_core.io.validation import StrictModel, first_validation_error

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params_characters import NegativeKind


class _Part(StrictModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StoryPanel(_Part):
    """A generated panel."""

    image: Words
    text: Words
    shows: list[str] | None = None


class GeneratedStory(_Part):
    """One line of the file."""

    characters: Characters
    panels: list[StoryPanel] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_are_known(self) -> GeneratedStory:
        names = [character.name for character in self.characters]
        for panel in self.panels:
            if unknown := sorted(set(panel.shows or ()) - set(names)):
                raise ValueError(f"panel {panel.image} shows {unknown[0]!r}, which is not among its characters {names}")
        return self

    def visible_names(self, panel: StoryPanel) -> set[str]:
        """The names of the characters that a panel shows."""
        if panel.shows is not None:
            return set(panel.shows)
        return {character.name for character in named_characters(panel.text, self.characters)}


@dataclass(frozen=True)
class _Candidate:
    """A possible case: a character, and a panel or one of the character's images (``copy``)."""

    character: Character
    images: Sequence[Image]
    panel: Image
    kind: CharacterKind
    unit: str
    key: str
    copied: int = -1  # position of the image that the panel copies

    def answers(self) -> list[str]:
        """One answer without reasons per image: a copy of one image is a new picture in comparison with the others."""
        consistent = [self.kind == POSITIVE or (self.copied not in (-1, n)) for n in range(len(self.images))]
        return [f"{YES if value else NO}." for value in consistent]


def add_stories(characters: CharacterPairs, file: Path, shares: Mapping[NegativeKind, float], seed: int) -> None:
    """Add the cases of a file of generated stories.

    Each panel is a positive case of every character that it shows. Negative cases are selected by seed, until each kind
    has its share of all cases or no candidate is left. ``other_character`` takes the panels of a neighboring story.
    Both stories are on the same side of a split, so no panel is in training and held out.

    Args:
        shares: share of each negative kind of all cases.

    Raises:
        DataError: if the file is missing, or no story in it can be used.
    """
    stories = read_stories(file, characters.rejected)
    validate_usable(file, stories, characters.rejected)
    groups = [stories[start : start + 2] for start in range(0, len(stories), 2)]
    if len(groups) > 1 and len(groups[-1]) == 1:
        groups[-2] += groups.pop()
    candidates = [candidate for number, group in enumerate(groups) for candidate in _candidates(group, file, number)]
    positives = [candidate for candidate in candidates if candidate.kind == POSITIVE]
    total = len(positives) / (1 - sum(shares.values()))
    chosen = list(positives)
    for kind in NEGATIVES:
        of_kind = sorted((c for c in candidates if c.kind == kind), key=lambda c: random_key(seed, kind, c.key))
        chosen += of_kind[: round(shares.get(kind, 0.0) * total)]
    for case in chosen:
        characters.add(
            case.character.name, case.images, case.panel, case.kind, case.answers(), case.unit, written=False
        )


@dataclass(frozen=True)
class ReadStory:
    """A story, its line in the file, and its decoded panels."""

    place: str
    story: GeneratedStory
    panels: list[Image]


def read_stories(file: Path, rejected: Rejected, *, heads: bool = False) -> list[ReadStory]:
    """The usable stories of a file. The other lines are added to ``rejected``.

    Args:
        heads: read only the heads of the panels' files, for a quick check. The stories then have no panels.

    Raises:
        DataError: if the file is missing.
    """
    stories = []
    for number, row in read_jsonl(file, rejected.lines_of(file)):
        place = f"{file}:{number}"
        try:
            story = GeneratedStory.model_validate(row, context={"folder": file.parent})
            paths = [inside(file.parent, panel.image) for panel in story.panels]
            for path in paths:
                content_and_size(path)
            panels = [] if heads else [read_image(path) for path in paths]
        except ValidationError as error:
            rejected.add(place, f"record: {first_validation_error(error)}")
        except DataError as error:
            rejected.add(place, f"picture: {error}")
        else:
            stories.append(ReadStory(place, story, panels))
    return stories


def validate_usable(file: Path, stories: Sequence[ReadStory], rejected: Rejected) -> None:
    """Raise DataError if no story of a file can be used."""
    if not stories:
        raise DataError(
            f"{file}: none of its stories can be used{rejected.example}; correct the file, or set "
            "pairs.characters.stories to null"
        )


def _candidates(group: Sequence[ReadStory], file: Path, number: int) -> Iterator[_Candidate]:
    """All cases of neighboring stories."""
    unit = f"{file.name} stories {number}"
    for home in group:
        for character in home.story.characters:
            images = load_images(character)
            for panel, kind, key, copied in _panels(home, character.name, images, group):
                name = f"{home.place} {character.name} {key}"
                yield _Candidate(character, images, panel, kind, unit, name, copied)


def _panels(
    home: ReadStory, name: str, images: Sequence[Image], group: Sequence[ReadStory]
) -> Iterator[tuple[Image, CharacterKind, str, int]]:
    """(panel, kind, name, position of the copied image or -1) of every case of a character of the story ``home``."""
    for position, image in enumerate(images):
        yield image, "copy", f"copy {position}", position
    for story in group:
        for position, (panel, image) in enumerate(zip(story.story.panels, story.panels, strict=True)):
            if kind := _kind(home, story, name, story.story.visible_names(panel)):
                yield image, kind, f"{story.place} {position}", -1


def _kind(home: ReadStory, story: ReadStory, name: str, names: set[str]) -> CharacterKind | None:
    """The kind of a panel of ``story`` in comparison with a character of the story ``home``."""
    if not names:
        return "absent"
    if story is not home:
        return "other_character"
    return POSITIVE if name in names else "swapped"
