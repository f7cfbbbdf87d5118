"""Prompt content: the rule that decides which records are the same prompt, whatever their ids."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

from paco_core.data.records.characters import image_digests
from paco_core.data.records.edit_records import EditRecord, connected_groups
from paco_core.data.records.records import PromptRecord
from paco_core.io.files import DataError, digest
from paco_core.io.text import normalize_text

Prompt = TypeVar("Prompt", bound=PromptRecord)


@lru_cache(maxsize=1 << 16)
def text_contents(*texts: str) -> frozenset[str]:
    """Digests of the normalized texts; a blank text has none."""
    return frozenset(digest(words, 16) for words in map(normalize_text, texts) if words)


def prompt_key(record: PromptRecord) -> str:
    """Digest of text, theme, layout, reference images and characters.

    Two records with one key are one prompt under two ids.
    """
    images = record.references if isinstance(record, EditRecord) else image_digests(record.characters)
    return digest([normalize_text(record.prompt), normalize_text(record.theme), record.layout, *images], 16)


def contents_of(record: PromptRecord) -> frozenset[str]:
    """Digests of the content that a test prompt must not share with a training prompt.

    They are the text and the theme of a set of images, or the reference images of an edit.
    """
    if isinstance(record, EditRecord):
        return frozenset(record.references)
    return text_contents(record.prompt, record.theme)


def contents_of_all(records: Iterable[PromptRecord]) -> set[str]:
    """The contents of several records together."""
    return {content for record in records for content in contents_of(record)}


def without_contents(records: Iterable[Prompt], contents: Collection[str]) -> list[Prompt]:
    """The records that have none of the contents."""
    return [record for record in records if contents_of(record).isdisjoint(contents)]


def untrained(records: Sequence[Prompt], trained: Collection[str]) -> list[Prompt]:
    """The records that share no content with a training prompt.

    Args:
        trained: contents of the training prompts, or ids of some of ``records``.
    """
    return without_contents(records, {*trained, *contents_of_all(r for r in records if r.idx in trained)})


def group_by_content(contents: Mapping[str, Collection[str]]) -> dict[str, str]:
    """The group of each prompt id: ids that share content are in one group, which has the least of its ids as its name.

    Args:
        contents: prompt id to digests, as :func:`contents_of` returns them.
    """
    ids = defaultdict[str, list[str]](list)
    for idx, digests in contents.items():
        for content in digests:
            ids[content].append(idx)
    return {idx: idx for idx in contents} | connected_groups(members for members in ids.values() if len(members) > 1)


def first_of_each_content(records: Sequence[Prompt]) -> list[Prompt]:
    """The first record of each group of :func:`group_by_content`, then the other records, both in their order."""
    groups = group_by_content({record.idx: contents_of(record) for record in records})
    first, repeats = dict[str, Prompt](), list[Prompt]()
    for record in records:
        if first.setdefault(groups[record.idx], record) is not record:
            repeats.append(record)
    return [*first.values(), *repeats]


def records_by_text(records: Iterable[PromptRecord]) -> dict[str, PromptRecord]:
    """Records by the text of their prompt, for callers that know nothing else of a prompt.

    Raises:
        DataError: with both ids, when two records with one text differ in more than their ids.
    """
    by_text: dict[str, PromptRecord] = {}
    for record in records:
        first = by_text.setdefault(record.prompt, record)
        if first.model_copy(update={"idx": record.idx}) != record:
            raise DataError(
                f"records {first.idx} and {record.idx} have one prompt text and differ in other keys, so the text does "
                "not tell which one is meant; change one of the texts or remove one of the records"
            )
    return by_text
