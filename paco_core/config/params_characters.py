"""Parameters of pairs that teach the reward model to recognize the character of a reference image."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from paco_core.config.params_base import DISTINCT, MOST_DRAWN, DrawnSide, Fraction, Section, Seed
from paco_core.config.references import UserFile

NegativeKind = Literal["other_character", "copy", "swapped", "absent"]
CharacterKind = Literal["positive", "other_character", "copy", "swapped", "absent"]
MOST_REFERENCES = 3  # images of a character


class CharacterPairsParams(Section):
    """Pairs of a character's image and a panel."""

    count: Annotated[int, Field(ge=0, le=MOST_DRAWN)] = 0
    """Number of panels that paco draws in the embedded world. Each panel is compared with all images of its
    character."""
    stories: UserFile | None = None
    """JSON Lines file of generated stories. Each line has the keys characters and panels. paco compares each panel with
    the images of the characters that its text names."""
    shares: dict[NegativeKind, Fraction] = Field(default={})
    """Share of each kind of negative panels: another character (`other_character`), a pasted reference image (`copy`),
    the other character of the same story (`swapped`), or no character (`absent`). The other panels are positive."""
    references: Annotated[
        list[Annotated[int, Field(ge=1, le=MOST_REFERENCES)]], Field(min_length=1, max_length=MOST_REFERENCES), DISTINCT
    ] = Field(default=[1, 2, 3])
    """Numbers of images of a drawn character. paco uses them alternately."""
    size: DrawnSide = 64
    """Side in pixels of the square images that paco draws."""
    seed: Seed = 0
    """Seed of the drawn panels, and of the choice of negative panels."""

    @property
    def used(self) -> bool:
        """Whether there are such pairs."""
        return bool(self.count or self.stories)

    @model_validator(mode="after")
    def _shares_leave_positives(self) -> CharacterPairsParams:
        total = sum(self.shares.values())
        if total >= 1:
            raise ValueError(
                f"shares: the negative kinds add up to {total:g}, but some panels must be positive; lower them below 1"
            )
        return self
