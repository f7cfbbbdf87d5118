"""Character pairs of generated stories: a JSON Lines file with one story per line.

{"characters": [{"name": "Mia", "images": ["mia_front.png", "mia_side.png"]}, {"name": "Fox", "images": ["fox.png"]}],
 "panels": [{"image": "panel1.png", "text": "Mia finds Fox."}, {"image": "panel2.png", "text": "An empty street."}]}

Paths are relative to the file. The text of a panel names the characters that the panel should show. If an annotator
knows better, ``shows`` lists the names of the characters that are in the panel, and ``wrong`` the names of characters
that should be in it and are not recognizable (:mod:`paco_core.data.annotation.character_rankings`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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
    wrong: list[str] = Field(default_factory=list)  # characters that annotators do not recognize in the panel


class GeneratedStory(_Part):
    """One line of the file."""

    characters: Characters
    panels: list[StoryPanel] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_are_known(self) -> GeneratedStory:
        names = [character.name for character in self.characters]
        for panel in self.panels:
            if unknown := sorted({*(panel.shows or ()), *panel.wrong} - set(names)):
                raise ValueError(f"panel {panel.image} has {unknown[0]!r}, which is not among its characters {names}")
            if contradictory := sorted({*(panel.shows or ())} & set(panel.wrong)):
                raise ValueError(f"panel {panel.image} has {contradictory[0]!r} in shows and in wrong; remove one")
        return self

    def visible_names(self, panel: StoryPanel) -> set[str]:
        """The names of the characters that a panel shows."""
        if panel.shows is not None:
            return set(panel.shows)
        return {character.name for character in named_characters(panel.text, self.characters)} - set(panel.wrong)


class _Panel(NamedTuple):
    """A panel, or an image of the character as a panel (``copy``), in comparison with a character."""

    image: Image
    kind: CharacterKind
    key: str
    copied: int = -1  # position of the image that the panel copies
    is_labelled: bool = False  # whether annotators labelled it, so that it is used in addition to the shares


class _Candidate(NamedTuple):
    """A possible case: a character with its images, and a panel."""

    character: Character
    images: Sequence[Image]
    panel: _Panel
    unit: str

    def answers(self) -> list[str]:
        """One answer without reasons per image: a copy of one image is a new picture in comparison with the others."""
        kind, copied = self.panel.kind, self.panel.copied
        labels = [kind == POSITIVE or copied not in (-1, position) for position in range(len(self.images))]
        return [f"{YES if label else NO}." for label in labels]


def add_stories(characters: CharacterPairs, file: Path, shares: Mapping[NegativeKind, float], seed: int) -> None:
    """Add the cases of a file of generated stories.

    Each panel is a positive case of every character that it shows. Negative cases are selected by seed, until each kind
    has its share of all cases or no candidate is left. Panels that annotators labelled as wrong are always used, as
    ``other_character``. This kind also takes the panels of a neighboring story. Both stories are on the same side of a
    split, so no panel is in training and held out.

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
    chosen = [candidate for candidate in candidates if candidate.panel.kind == POSITIVE]
    total = len(chosen) / (1 - sum(shares.values()))
    for kind in NEGATIVES:
        of_kind = [candidate for candidate in candidates if candidate.panel.kind == kind]
        of_kind.sort(key=lambda c: (not c.panel.is_labelled, random_key(seed, c.panel.kind, c.panel.key)))
        count = max(round(shares.get(kind, 0.0) * total), sum(c.panel.is_labelled for c in of_kind))
        chosen += of_kind[:count]
    for case in chosen:
        name, panel = case.character.name, case.panel
        characters.add(name, case.images, panel.image, panel.kind, case.answers(), case.unit, written=False)


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
    for home in group:
        for character in home.story.characters:
            images = load_images(character)
            for panel in _panels(home, character.name, images, group):
                yield _Candidate(character, images, panel, f"{file.name} stories {number}")


def _panels(home: ReadStory, name: str, images: Sequence[Image], group: Sequence[ReadStory]) -> Iterator[_Panel]:
    """The panels of all cases of a character of the story ``home``."""
    place = f"{home.place} {name}"
    for position, image in enumerate(images):
        yield _Panel(image, "copy", f"{place} copy {position}", position)
    for story in group:
        for position, (panel, image) in enumerate(zip(story.story.panels, story.panels, strict=True)):
            if kind := _kind(home, story, name, panel):
                is_wrong = story is home and name in panel.wrong
                yield _Panel(image, kind, f"{place} {story.place} {position}", is_labelled=is_wrong)


def _kind(home: ReadStory, story: ReadStory, name: str, panel: StoryPanel) -> CharacterKind | None:
    """The kind of a panel of ``story`` in comparison with a character of the story ``home``, or None if unknown."""
    names = story.story.visible_names(panel)
    if story is home and name in names:
        return POSITIVE
    if panel.wrong:  # annotators did not say whom it shows
        return "other_character" if story is home and name in panel.wrong else None
    if not names:
        return "absent"
    return "swapped" if story is home else "other_character"
