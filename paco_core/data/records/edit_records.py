"""Editing prompts as records: an instruction and the pictures it is about, as the stage ``edit_prompts`` leaves them.

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


def _several(given: Any) -> Any:
    """What the key ``reference`` of a file holds, one id or a list of them, as a tuple."""
    return tuple(given) if isinstance(given, list | tuple) else (given,)


def _one_or_several(ids: tuple[str, ...]) -> str | list[str]:
    return ids[0] if len(ids) == 1 else list(ids)


#: Ids of reference pictures in the order in which an instruction counts them; in a file one id stands without a list.
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
    """The reference pictures of records, read when asked for; the ones used last stay in memory."""

    def __init__(self, reader: ShardReader) -> None:
        self._reader, self._kept, self._lock = reader, OrderedDict[str, "Image"](), Lock()

    def __call__(self, record: PromptRecord) -> list[Image]:
        """The pictures that a record is about, in their order.

        Raises:
            DataError: naming the record, when it has none or one of them is damaged.
        """
        if not isinstance(record, EditRecord):
            raise DataError(f"prompt {record.idx}: not an editing prompt: it names no reference picture")
        with self._lock:  # rewards ask from threads of their own
            return [self._picture(record, name) for name in record.references]

    def _picture(self, record: EditRecord, name: str) -> Image:
        if name not in self._kept:
            try:
                self._kept[name] = self._reader.read(name)
            except DataError as error:
                raise DataError(f"editing prompt {record.idx}: {error}") from None
            while len(self._kept) > CACHED_PICTURES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(name)
        return self._kept[name]

    def check(self, records: Iterable[EditRecord]) -> None:
        """Look whether every record's pictures are in the shard.

        Raises:
            DataError: naming a record with a picture that is missing.
        """
        known = set(self._reader.index.index)
        lost = [(record.idx, name) for record in records for name in record.references if name not in known]
        if lost:
            idx, name = lost[0]
            raise DataError(
                f"{len({idx for idx, _ in lost})} editing prompts have no reference picture, e.g. {idx} names "
                f"{name}; run `dvc repro edit_prompts`"
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


def connected(rows: Iterable[Sequence[str]]) -> dict[str, str]:
    """The group of each name, by its least member: names of one row, and of rows that share a name, are together."""
    members: dict[str, set[str]] = {}
    for row in rows:
        group = set(row).union(*(members.get(name, ()) for name in row))
        members |= dict.fromkeys(group, group)
    return {name: min(group) for name, group in members.items()}


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


def asked_about(instruction: str, count: int) -> list[int]:
    """Places of the references that an edit is judged by, from 0: the edited image, and those that are named.

    For example "image 2", "pictures 2, 3 and 4", "the second photo", "the last image", "图2" and "第二张图" name
    images. All references count if the instruction names none beside the first, or may name more than is read here.

    Args:
        count: of the references.
    """
    rest = unicodedata.normalize("NFKC", instruction)
    numbers = set[int]()
    for match in _NUMBERED.finditer(rest):
        numbers |= {int(digit) for digit in re.findall("[1-9]", match.group())}
    rest = _NUMBERED.sub(" ; ", rest)
    for match in _ORDINAL.finditer(rest):
        word = match.group(1).lower()
        numbers.add(count if word == "last" else _ORDINALS.index(word) + 1)
    rest = _ORDINAL.sub(" ; ", rest)
    for digit in (match.group(1) or match.group(2) for match in _CHINESE.finditer(rest)):
        numbers.add(_CHINESE_DIGITS.get(digit) or int(digit))
    rest = _CHINESE.sub(" ; ", rest)
    others = sorted(number - 1 for number in numbers if number > 1)
    certain = others and others[-1] < count and not _DOUBT.search(rest)
    return [0, *(others if certain else range(1, count))]
