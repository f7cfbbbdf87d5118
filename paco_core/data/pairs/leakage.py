"""Leakage: prompts and images of the held-out benchmark in the training or validation data, compared by content."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paco_core.data.records.prompt_content import text_contents
from paco_core.data.records.records import parse_ref
from paco_core.io.files import DataError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class HeldOut:
    """Further held-out data: contents of prompts (texts and themes), and digests of the pixels of panels."""

    prompts: frozenset[str] = frozenset()
    panels: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Leakage:
    """Prompts and grids of the benchmark that are also in the training or validation pairs."""

    prompts: list[str] = field(default_factory=list)  # prompt ids
    pictures: list[str] = field(default_factory=list)  # grid ids
    train_and_validation: list[str] = field(default_factory=list)  # prompt ids in training and in validation

    def __bool__(self) -> bool:
        return bool(self.prompts or self.pictures or self.train_and_validation)

    def __str__(self) -> str:
        examples = [*self.prompts, *self.pictures, *self.train_and_validation][:3]
        return (
            f"{len(self.prompts)} prompts and {len(self.pictures)} pictures of the benchmark occur in training or "
            f"validation, {len(self.train_and_validation)} prompts occur in training and in validation"
            + (f" (e.g. {', '.join(examples)})" if self else "")
        )


def prompt_contents(texts: Mapping[str, str], themes: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """The contents of the text and the theme of each prompt id (:func:`text_contents`).

    Args:
        texts: prompt id to text.
        themes: pairs of a prompt id and a theme. An imported prompt can have a theme and no text.
    """
    contents = {idx: set(text_contents(text)) for idx, text in texts.items()}
    for idx, theme in dict.fromkeys(themes):
        contents.setdefault(idx, set()).update(text_contents(theme))
    return contents


def measure_leakage(
    benchmark: pd.DataFrame,
    parts: Mapping[str, pd.DataFrame],
    texts: Mapping[str, str],
    md5s: Mapping[str, str],
    held_out: HeldOut | None = None,
    picture_digest: Callable[[str], str] = str,
) -> Leakage:
    """Compare the benchmark and further held-out data with the tables of pairs.

    A prompt also matches under another id if its text or theme is equal. A picture also matches under another id if its
    bytes are equal.

    Args:
        benchmark: columns ``prompt_id``, ``theme``, ``reference``, ``candidates``.
        parts: ``train`` and ``validation``.
        texts: prompt id -> prompt. Editing pairs have no prompt.
        md5s: grid id -> MD5 of the encoded picture.
        held_out: further held-out data.
        picture_digest: returns the digest of the pixels of a panel reference. It is called only if ``held_out``
            contains panels.
    """
    own_grids, excluded, tables = grids_in_table(benchmark), held_out or HeldOut(), [benchmark, *parts.values()]
    contents = prompt_contents(texts, (row for t in tables for row in zip(t["prompt_id"], t["theme"], strict=True)))
    closed = excluded.prompts | _keys(benchmark, contents)
    closed_md5s = {md5s[g] for g in own_grids if g in md5s}
    prompts = {prompt for table in parts.values() for prompt in table["prompt_id"]}
    grids = {grid for table in parts.values() for grid in grids_in_table(table)}
    refs = {ref for table in parts.values() for side in ("first", "second") for ref in table[side]}
    foreign = (
        {parse_ref(ref)[0] for ref in refs if picture_digest(ref) in excluded.panels} if excluded.panels else set()
    )
    keys = [_keys(table, contents) for table in parts.values()] if len(parts) > 1 else [set[str]()]
    return Leakage(
        sorted(p for p in prompts if not closed.isdisjoint((p, *contents[p]))),
        sorted(g for g in grids if g in own_grids or g in foreign or md5s.get(g) in closed_md5s),
        sorted(p for p in prompts if not any(of_part.isdisjoint((p, *contents[p])) for of_part in keys)),
    )


def _keys(table: pd.DataFrame, contents: Mapping[str, Iterable[str]]) -> set[str]:
    """Ids and contents of the prompts of a table."""
    ids = set(table["prompt_id"])
    return ids.union(*(contents[idx] for idx in ids))


def picture_md5s(index: pd.DataFrame) -> dict[str, str]:
    """Grid id -> MD5, from the index of shards.

    Raises:
        DataError: if the index has no MD5s.
    """
    if "md5" not in index:
        raise DataError("the shards' index has no column 'md5'; run `dvc repro grids`")
    return {str(name): str(md5) for name, md5 in zip(index["id"], index["md5"], strict=True)}


def grids_in_table(table: pd.DataFrame) -> set[str]:
    """The ids of the grids in a table of pairs or of rankings."""
    if "candidates" in table:
        refs: Iterable[str] = [*table["reference"], *(ref for refs in table["candidates"] for ref in refs)]
    else:
        refs = [*table["first"], *table["second"]]
    return {parse_ref(ref)[0] for ref in refs}
