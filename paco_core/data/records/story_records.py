"""Prompt records that are stories of ViStoryBench: beside the record's own keys who appears in which shot.

story     its number there, such as "01"
language  en or ch
shots     index, setting, action, camera, plot and characters (keys) of each panel, in the order of the panels
cast      by key: name, description, and paths of reference pictures, relative to the records' file
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import ConfigDict, Field, NonNegativeInt, ValidationError

from paco_core.data.records.records import Id, Text, Words
from paco_core.io.files import DataError
from paco_core.io.validation import StrictModel, first_validation_error

if TYPE_CHECKING:
    from paco_core.data.records.records import PromptRecord


class _Part(StrictModel):
    model_config = ConfigDict(frozen=True)


class Shot(_Part):
    """What one panel is to show."""

    index: NonNegativeInt
    setting: Words
    action: Words
    camera: Words
    plot: Text = ""
    characters: Sequence[str] = ()


class CastMember(_Part):
    """Who appears in a story."""

    name: Words
    description: Text = ""
    pictures: Sequence[str] = ()


class Story(_Part):
    """A story as it was imported."""

    story: Id
    language: str
    shots: Sequence[Shot] = Field(min_length=1)
    cast: Mapping[str, CastMember] = {}


def story_of(record: PromptRecord) -> Story:
    """The story that a record is.

    Raises:
        DataError: when it is none.
    """
    try:
        story = Story.model_validate(record.model_extra)
    except ValidationError as error:
        raise DataError(
            f"story: record {record.idx} is no story of ViStoryBench ({first_validation_error(error)})"
        ) from None
    rows, columns = record.grid
    if len(story.shots) != rows * columns:
        panels = f"its layout {record.layout} {rows * columns} panels"
        raise DataError(f"story: record {record.idx} has {len(story.shots)} shots, {panels}")
    if unknown := {key for shot in story.shots for key in shot.characters} - story.cast.keys():
        raise DataError(f"story: record {record.idx} names characters that it does not have: {', '.join(unknown)}")
    return story
