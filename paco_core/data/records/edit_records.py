"""Editing prompts as records: an instruction and the picture it is about, as the stage ``edit_prompts`` leaves them.

edits.jsonl   one :class:`EditRecord` a line
pictures/     their reference pictures, a shard
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from paco_core.data.records.records import Dimension, Id, PromptRecord, validated
from paco_core.io.files import DataError, UniqueIds, read_jsonl
from paco_core.io.shards import ShardReader

if TYPE_CHECKING:
    from PIL.Image import Image

FILE, SHARD = "edits.jsonl", "pictures"
CACHED_PICTURES = 256
Part = Literal["train", "unseen"]


class EditRecord(PromptRecord):
    """An instruction (the prompt) about one picture (``reference``, its id in the shard).

    A record of GEdit-Bench also says whether it is in the ``intersection``, the subset that all compared editors
    answered. In the embedded world ``before`` holds the traits that the picture shows, and ``trait`` is to become
    ``word``.
    """

    layout: str = Field(default="1x1", pattern=r"^1x1$")
    category: str = "Editing"
    criteria: dict[Dimension, dict[str, str | None]] = Field(default_factory=dict)
    reference: Id
    language: str = "en"
    part: Part
    before: dict[str, str] | None = None
    trait: str | None = None
    word: str | None = None


class References:
    """The reference pictures of records, read when asked for; the ones used last stay in memory."""

    def __init__(self, reader: ShardReader) -> None:
        self._reader, self._kept, self._lock = reader, OrderedDict[str, "Image"](), Lock()

    def __call__(self, record: PromptRecord) -> Image:
        """The picture that a record is about.

        Raises:
            DataError: naming the record, when it has none or its picture is damaged.
        """
        if not isinstance(record, EditRecord):
            raise DataError(f"prompt {record.idx}: not an editing prompt: it names no reference picture")
        with self._lock:  # rewards ask from threads of their own
            if record.reference not in self._kept:
                self._kept[record.reference] = self._read(record)
                while len(self._kept) > CACHED_PICTURES:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(record.reference)
            return self._kept[record.reference]

    def _read(self, record: EditRecord) -> Image:
        try:
            return self._reader.read(record.reference)
        except DataError as error:
            raise DataError(f"editing prompt {record.idx}: {error}") from None

    def check(self, records: Iterable[EditRecord]) -> None:
        """Look whether every record's picture is in the shard.

        Raises:
            DataError: naming a record whose picture is missing.
        """
        known = set(self._reader.index.index)
        lost = [record for record in records if record.reference not in known]
        if lost:
            raise DataError(
                f"{len(lost)} editing prompts have no reference picture, e.g. {lost[0].idx} names "
                f"{lost[0].reference}; run `dvc repro edit_prompts`"
            )


def read_edit_prompts(folder: Path, *, none_allowed: bool = False) -> tuple[list[EditRecord], References]:
    """The records that the stage ``edit_prompts`` wrote, and their pictures.

    Args:
        none_allowed: whether there may be no record, as with ``edit_prompts.source: none``.

    Raises:
        DataError: naming file and line of a record that is no valid one or repeats an id; naming a record whose
            picture is missing.
    """
    path, records, names = folder / FILE, list[EditRecord](), UniqueIds()
    for number, row in read_jsonl(path):
        record = validated(EditRecord, row, f"{path}:{number}")
        try:
            names.add(record.idx, number)
        except DataError as error:
            raise DataError(f"{path}:{number}: idx {error}") from None
        records.append(record)
    if not records and not none_allowed:
        raise DataError(
            f"{path}: holds no editing prompt; choose an edit_prompts.source, and run `dvc repro edit_prompts`"
        )
    references = References(ShardReader([folder / SHARD]))
    references.check(records)
    return records, references


def of_part(records: Sequence[EditRecord], part: Part) -> list[EditRecord]:
    return [record for record in records if record.part == part]


def asked_of(record: object) -> tuple[dict[str, str], str, str]:
    """(traits of the reference picture, trait to change, word that it is to become) of a drawn editing prompt.

    Raises:
        DataError: when the record is not one of the embedded world's.
    """
    if isinstance(record, EditRecord) and record.before and record.trait and record.word:
        return record.before, record.trait, record.word
    raise DataError(
        f"prompt {getattr(record, 'idx', record)}: the traits of its picture (before) or the edit (trait, word) are "
        "missing; "
        "only drawn editing prompts have a gold metric (edit_prompts.source: storybook, or world: real)"
    )
