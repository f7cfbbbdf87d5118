"""The records that travel between the data stages, and the T2IS text layout.

Prompts are T2IS records (the public format: idx, prompt, height, width, layout, theme, category,
task_name, criteria). A panel of a grid is named by a reference ``<grid id>#<panel>``. Ids become names of
files, so that they are checked where a record is read (:data:`Id`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from paco_core.config.layouts import LAYOUT, validate_layout
from paco_core.data.records import prompt_text
from paco_core.data.records.characters import (
    Character,
    copy_images,
    dump_characters,
    named_characters,
    read_characters,
)
from paco_core.data.tables import parse_text
from paco_core.io.decoding import MAX_SIDE
from paco_core.io.files import DataError, UniqueIds, checked_name, read_jsonl, write_jsonl
from paco_core.io.rejected import Rejected
from paco_core.io.text import not_blank, validate_marks
from paco_core.io.validation import StrictModel, first_validation_error

#: The public records know three dimensions, and three of 298 records a fourth, "Surroundings".
Dimension = Literal["Style", "Identity", "Logic", "Surroundings"]
Record = TypeVar("Record", bound=BaseModel)
Id = Annotated[str, BeforeValidator(lambda value: parse_text(value, "id")), AfterValidator(checked_name)]
Text = Annotated[str, AfterValidator(validate_marks)]  # a person's words for a model
Words = Annotated[Text, AfterValidator(not_blank)]
Side = Annotated[int, Field(gt=0, le=MAX_SIDE)]  # pixels


def _read_characters(value: Any, info: ValidationInfo) -> tuple[Character, ...]:
    prompt, layout = info.data.get("prompt"), info.data.get("layout")
    try:
        panels = [] if prompt is None or layout is None else _texts_of_panels(prompt, layout)
    except DataError as error:
        raise ValueError(str(error)) from None
    return read_characters(value, (info.context or {}).get("folder"), panels)


#: In a file, a list of ``{name, images}``. Paths of images are relative to the folder in the validation context.
Characters = Annotated[tuple[Character, ...], PlainValidator(_read_characters), PlainSerializer(dump_characters)]


class _Released(StrictModel):
    """What records of PaCo-GRPO's released files have beside those of T2IS-Bench."""

    source: str | None = Field(None, alias="from")  # the data set that the record was taken from
    original_idx: str | None = None  # its id there
    editing_prompts: list[Words] | None = None  # the first panel, then each from the last
    size: Annotated[tuple[Side, Side] | None, Field(strict=False)] = None


RELEASED_KEYS = frozenset(field.alias or name for name, field in _Released.model_fields.items())


class PromptRecord(StrictModel):
    """One text-to-image-set prompt in the public T2IS format; other keys than these are kept as they are.

    Its layout is that of its key ``layout``, else what the text states. A story may have ``characters``, whom its panel
    texts name.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    idx: Id
    prompt: Words
    height: Side
    width: Side
    layout: Annotated[str, Field(pattern=LAYOUT), BeforeValidator(validate_layout)]
    theme: Words
    category: str
    task_name: str
    criteria: dict[Dimension, dict[Text, Text | None]]  # null: named without a text, as one public record does
    characters: Characters = Field(default=(), exclude_if=lambda characters: not characters)

    @model_validator(mode="before")
    @classmethod
    def _layout_of_its_text(cls, row: Any) -> Any:
        """A record without ``layout`` has the one that its prompt states (:func:`prompt_text.layout_of`)."""
        infers_layout = isinstance(row, dict) and row.get("layout") is None and cls.model_fields["layout"].is_required()
        if not infers_layout or not isinstance(row.get("prompt"), str):
            return row
        try:
            stated = prompt_text.layout_of(row["prompt"])
        except DataError as error:
            raise ValueError(str(error)) from None
        if stated is None:
            raise ValueError("there is no layout, and the prompt states none by its head or the marks of its panels")
        return row | {"layout": stated}

    @model_validator(mode="after")
    def _released_keys_make_sense(self) -> PromptRecord:
        try:
            size = _Released.model_validate(self.model_extra).size
        except ValidationError as error:
            raise ValueError(first_validation_error(error)) from None
        if size is not None and sorted(size) != sorted((self.height, self.width)):
            raise ValueError(f"size {list(size)} is not its height and width, {self.height} and {self.width}")
        return self

    @property
    def unknown_keys(self) -> set[str]:
        """Keys that neither T2IS-Bench nor the released files have."""
        return set(self.model_extra or ()) - RELEASED_KEYS

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of the layout."""
        rows, columns = self.layout.split("x")
        return int(rows), int(columns)


def validated(kind: type[Record], row: Any, place: str) -> Record:
    """A row as a record of its kind.

    Args:
        place: file and line, for the message.

    Raises:
        DataError: naming place and key of a row that is no valid one.
    """
    try:
        return kind.model_validate(row)
    except ValidationError as error:
        raise DataError(f"{place}: {first_validation_error(error)}") from None


def read_prompts(
    path: Path,
    check: Callable[[PromptRecord], object] = lambda _record: None,
    rejected: Rejected | None = None,
    *,
    none_allowed: bool = False,
) -> list[PromptRecord]:
    """Read T2IS records from JSON Lines.

    Args:
        check: raises a DataError when it finds a record wrong; file and line are put before its text.
        rejected: takes the records that cannot be used, which are then left out; without it such a record is an error.
        none_allowed: whether the file may hold no record, as it does with ``prompts.engine: none``.

    Raises:
        DataError: naming file and line of a record that is no valid one, or whose ``idx`` repeats.
    """
    records: list[PromptRecord] = []
    names = UniqueIds()
    for number, row in read_jsonl(path, rejected.lines_of(path) if rejected is not None else None):
        try:
            record = _usable(row, number, names, check, path.parent)
        except DataError as error:
            if rejected is None:
                raise DataError(f"{path}:{number}: {error}") from None
            rejected.add(f"{path}:{number}", f"record: {error}")
        else:
            records.append(record)
    if not records and rejected is None and not none_allowed:
        raise DataError(f"{path}: holds no prompt")
    return records


def _usable(
    row: Any, number: int, names: UniqueIds, check: Callable[[PromptRecord], object], folder: Path
) -> PromptRecord:
    try:
        record = PromptRecord.model_validate(row, context={"folder": folder})
    except ValidationError as error:
        raise DataError(first_validation_error(error)) from None
    try:
        names.add(record.idx, number)
    except DataError as error:
        raise DataError(f"idx {error}") from None
    try:
        check(record)
    except DataError as error:
        raise DataError(f"record {record.idx}: {error}") from None
    return record


def write_prompts(path: Path, records: Iterable[PromptRecord]) -> None:
    """Write T2IS records as JSON Lines, atomically, and the images of their characters next to it."""
    records = list(records)
    copy_images((character for record in records for character in record.characters), path.parent)
    write_jsonl(path, (record.model_dump() for record in records))


def split_panels(prompt: str, layout: str) -> tuple[str, list[str]]:
    """The shared opening of a T2IS prompt and the text of each panel, in reading order.

    Args:
        prompt: the full text, panels marked ``[TOP]-[LEFT]:``, ``PANEL-1:`` and so on.
        layout: of the record.

    Raises:
        DataError: when the text marks other panels than the layout has.
    """
    parts = prompt_text.parse_prompt(prompt, layout)
    return parts.opening, [panel.text for panel in parts.panels]


def panel_texts(record: PromptRecord) -> list[str]:
    """The prompt of each panel on its own: the text that all panels share, then the panel's text.

    Raises:
        DataError: as :func:`split_panels`.
    """
    return _texts_of_panels(record.prompt, record.layout)


def _texts_of_panels(prompt: str, layout: str) -> list[str]:
    parts = prompt_text.parse_prompt(prompt, layout)
    return [f"{parts.shared} {panel.text}".strip() for panel in parts.panels]


def characters_of_panels(record: PromptRecord) -> list[list[Character]]:
    """The characters that the text of each panel names (:func:`named_characters` of :func:`panel_texts`)."""
    return [named_characters(text, record.characters) for text in panel_texts(record)]


def panel_ref(grid_id: str, panel: int) -> str:
    """Reference to one panel: grid id and position in reading order."""
    return f"{grid_id}#{panel}"


def parse_ref(ref: str) -> tuple[str, int]:
    """Inverse of :func:`panel_ref`.

    Raises:
        DataError: when the text is no reference.
    """
    grid_id, mark, panel = ref.rpartition("#")
    if not mark or not re.fullmatch("[0-9]{1,4}", panel):
        raise DataError(f"{ref!r} is not a panel reference; expected '<grid id>#<panel>'")
    return grid_id, int(panel)
