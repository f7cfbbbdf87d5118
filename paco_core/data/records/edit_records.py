"""Editing prompts: records of an instruction and its reference pictures, as the stage ``edit_prompts`` writes them.

edits.jsonl   one :class:`EditRecord` per line
pictures/     their reference pictures, a shard
"""

from __future__ import annotations

import re
import unicodedata
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer

from paco_core.data.records.records import Dimension, Id, PromptRecord, Text, validated
from paco_core.io.files import DataError, UniqueIds, read_jsonl
from paco_core.io.shards import ShardReader

if TYPE_CHECKING:
    from PIL.Image import Image


FILE, SHARD = "edits.jsonl", "pictures"
CACHED_PICTURES = 256
Part = Literal["train", "unseen"]


def _several(value: Any) -> Any:
    """The value of the key ``reference``, which is an id or a list of ids, as a tuple."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _one_or_several(ids: tuple[str, ...]) -> str | list[str]:
    return ids[0] if len(ids) == 1 else list(ids)


#: Ids of reference pictures in the order in which an instruction counts them. In a file, one id is written without a
#: list.
Pictures = Annotated[
    tuple[Id, ...], BeforeValidator(_several), PlainSerializer(_one_or_several), Field(min_length=1, alias="reference")
]


class EditRecord(PromptRecord):
    """An instruction (the prompt) about one picture or several (``references``, their ids in the shard).

    The first is the one that is edited: its height and width are the record's. In a file the key is ``reference``, an
    id, or a list of ids where there are several.

    A record of GEdit-Bench also says whether it is in the ``intersection``, the subset that all compared editors
    answered. In the embedded world ``before`` holds the traits that the picture shows, and ``trait`` is to become
    ``word``.
    """

    model_config = ConfigDict(serialize_by_alias=True)  # beside those of the class above

    layout: str = Field(default="1x1", pattern=r"^1x1$")
    category: str = "Editing"
    criteria: dict[Dimension, dict[Text, Text | None]] = Field(default_factory=dict)
    references: Pictures
    language: str = "en"
    part: Part
    before: dict[str, str] | None = None
    trait: str | None = None
    word: str | None = None


class References:
    """The reference pictures of records, read on access. The most recently used ones stay in memory."""

    def __init__(self, reader: ShardReader) -> None:
        self._reader, self._cached, self._lock = reader, OrderedDict[str, "Image"](), Lock()

    def __call__(self, record: PromptRecord) -> list[Image]:
        """The pictures that a record is about, in their order.

        Raises:
            DataError: if the record has no reference picture, or one of them is damaged.
        """
        if not isinstance(record, EditRecord):
            raise DataError(f"prompt {record.idx} is not an editing prompt: it has no reference picture")
        with self._lock:  # rewards read from several threads
            return [self._picture(record, name) for name in record.references]

    def _picture(self, record: EditRecord, name: str) -> Image:
        if name not in self._cached:
            try:
                self._cached[name] = self._reader.read(name)
            except DataError as error:
                raise DataError(f"editing prompt {record.idx}: {error}") from None
            while len(self._cached) > CACHED_PICTURES:
                self._cached.popitem(last=False)
        self._cached.move_to_end(name)
        return self._cached[name]

    def check(self, records: Iterable[EditRecord]) -> None:
        """Raise DataError, with the id of a record, unless all pictures of the records are in the shard."""
        available = set(self._reader.index.index)
        lost = [(record.idx, name) for record in records for name in record.references if name not in available]
        if lost:
            idx, name = lost[0]
            raise DataError(
                f"{len({idx for idx, _ in lost})} editing prompts have no reference picture, e.g. {idx} names "
                f"{name}; run `dvc repro edit_prompts`"
            )


def read_edit_prompts(folder: Path, *, none_allowed: bool = False) -> tuple[list[EditRecord], References]:
    """Read the records of the stage ``edit_prompts`` and their pictures.

    Args:
        none_allowed: accept a file without records, as with ``edit_prompts.source: none``.

    Raises:
        DataError: if a record is invalid, repeats an id, or lacks a picture. The message contains its file and line.
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
            f"{path} contains no editing prompts; set edit_prompts.source, and run `dvc repro edit_prompts`"
        )
    references = References(ShardReader([folder / SHARD]))
    references.check(records)
    return records, references


def of_part(records: Sequence[EditRecord], part: Part) -> list[EditRecord]:
    return [record for record in records if record.part == part]


def connected_groups(rows: Iterable[Sequence[str]]) -> dict[str, str]:
    """The group of each name, as its least member. Names of one row, and of rows that share a name, form a group."""
    members: dict[str, set[str]] = {}
    for row in rows:
        group = set(row).union(*(members.get(name, ()) for name in row))
        members |= dict.fromkeys(group, group)
    return {name: min(group) for name, group in members.items()}


def requested_edit(record: object) -> tuple[dict[str, str], str, str]:
    """(traits of the reference picture, trait to change, its new word) of an editing prompt of the storybook world.

    Raises:
        DataError: if the record is not from the storybook world.
    """
    if isinstance(record, EditRecord) and record.before and record.trait and record.word:
        return record.before, record.trait, record.word
    raise DataError(
        f"prompt {getattr(record, 'idx', record)}: the traits of its picture (before) or the edit (trait, word) are "
        "missing; "
        "only drawn editing prompts have a ground-truth metric (edit_prompts.source: storybook, or world: real)"
    )


_IMAGE = r"(?:image|picture|photo|figure|reference|pic|img)"
_KIND = r"(?:(?:reference|input|source)\s+)?"  # as in "reference image 2"
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
_CHINESE_DIGITS = {digit: number for number, digit in enumerate("一二三四五六七八", 1)}
_CHINESE_IMAGE = "(?:参考|參考)?(?:图片?|圖片?|照片)"

_NUMBERED = re.compile(
    rf"\b{_KIND}{_IMAGE}s?\s*(?:no\.?|number)?\s*#?\s*[1-9]\b(?:\s*(?:,\s*and\b|,\s*or\b|,|\band\b|\bor\b|&)\s*#?[1-9]\b)*",
    re.IGNORECASE,
)
_ORDINAL = re.compile(
    rf"\b({'|'.join(_ORDINALS)}|last)\s+{_KIND}{_IMAGE}\b(?!\s+(?:from|before|after|but)\b)", re.IGNORECASE
)
_CHINESE = re.compile(
    f"(?:{_CHINESE_IMAGE}\\s*([1-9一二三四五六七八])(?![0-9十])|"
    f"第\\s*([1-9一二三四五六七八])\\s*(?:张|張|幅|个|個){_CHINESE_IMAGE})"
)
#: Signs that the rest of a sentence may name an image, too: a digit, a letter of a language that is not read here, a
#: word for an image, a numeral, an ordinal, and a word for several or other images.
_DOUBT = re.compile(
    r"\d|[^\W\d_\u0000-\u007f\u3400-\u9fff]"
    r"|\b(?:imag|pic|photo|figur|referenc|img|bild|foto|immag|afbeeld|obraz)"
    r"|\b(?:two|three|four|five|six|seven|eight|nine|ten|first|second|third|fourth|fifth|sixth|seventh|eighth|ninth"
    r"|tenth|both|each|every|all|others?|another|rest|remaining|last|previous|preceding|following|former|latter|ones"
    r"|next one|(?:the|this|that|each) one|several|neighbou?rs?|successors?|predecessors?"
    r"|(?:subject|person|object) [b-h])\b"
    "|[二三四五六七八九十两兩几幾第张張幅图圖]|照片|[参參]考|最[后後前]|其[他它余餘]|另|所有|全部|每|各|[前后後]者|剩下|余下",
    re.IGNORECASE,
)


def evaluated_references(instruction: str, count: int) -> list[int]:
    """Positions, from 0, of the references that an edit is compared with: the edited image and those in the text.

    For example, "image 2", "pictures 2, 3 and 4", "the second photo", "the last image", "图2" and "第二张图" refer to
    images. The result contains all references if the instruction mentions only the first one, or if it may mention
    further images in words that this function does not parse.

    Args:
        count: number of references.
    """
    text = unicodedata.normalize("NFKC", instruction)
    numbers = set[int]()
    for match in _NUMBERED.finditer(text):
        numbers |= {int(digit) for digit in re.findall("[1-9]", match.group())}
    text = _NUMBERED.sub(" ; ", text)
    for match in _ORDINAL.finditer(text):
        word = match.group(1).lower()
        numbers.add(count if word == "last" else _ORDINALS.index(word) + 1)
    text = _ORDINAL.sub(" ; ", text)
    for digit in (match.group(1) or match.group(2) for match in _CHINESE.finditer(text)):
        numbers.add(_CHINESE_DIGITS.get(digit) or int(digit))
    text = _CHINESE.sub(" ; ", text)
    later_places = sorted(number - 1 for number in numbers if number > 1)
    certain = later_places and later_places[-1] < count and not _DOUBT.search(text)
    return [0, *(later_places if certain else range(1, count))]
