"""Leakage: whether anything of the held-out benchmark is trained on, by the content of prompts and of images."""

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
class Held:
    """What else must not be trained on: contents of prompts (texts and themes), and digests of panels' pixels."""

    prompts: frozenset[str] = frozenset()
    panels: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Leakage:
    """What training or validation shares with the benchmark."""

    prompts: list[str] = field(default_factory=list)  # prompt ids
    pictures: list[str] = field(default_factory=list)  # grid ids
    both: list[str] = field(default_factory=list)  # prompt ids in training and in validation

    def __bool__(self) -> bool:
        return bool(self.prompts or self.pictures or self.both)

    def __str__(self) -> str:
        examples = [*self.prompts, *self.pictures, *self.both][:3]
        return (
            f"{len(self.prompts)} prompts and {len(self.pictures)} pictures of the benchmark occur in training or "
            f"validation, {len(self.both)} prompts in both of these"
            + (f" (e.g. {', '.join(examples)})" if self else "")
        )


def prompt_contents(texts: Mapping[str, str], themes: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Prompt id to the contents of its text and of its theme (:func:`text_contents`).

    Args:
        texts: prompt id to text.
        themes: pairs of a prompt id and a theme; a prompt that comes from elsewhere may have a theme and no text.
    """
    contents = {idx: set(text_contents(text)) for idx, text in texts.items()}
    for idx, theme in dict.fromkeys(themes):
        contents.setdefault(idx, set()).update(text_contents(theme))
    return contents


def leakage(
    benchmark: pd.DataFrame,
    parts: Mapping[str, pd.DataFrame],
    texts: Mapping[str, str],
    md5s: Mapping[str, str],
    held: Held | None = None,
    picture_digest: Callable[[str], str] = str,
) -> Leakage:
    """Compare the benchmark, and what else is to be held out, with the tables of pairs.

    A prompt counts under another id with the same text or theme, a picture under another id with the same bytes.

    Args:
        benchmark: columns ``prompt_id``, ``theme``, ``reference``, ``candidates``.
        parts: ``train`` and ``validation``.
        texts: prompt id -> prompt; pairs without a prompt (editing pairs) need none.
        md5s: grid id -> MD5 of the picture as encoded.
        picture_digest: digest of the pixels behind a panel reference; asked only where ``held`` names panels.
    """
    own_grids, more, tables = grids_of(benchmark), held or Held(), [benchmark, *parts.values()]
    contents = prompt_contents(texts, (row for t in tables for row in zip(t["prompt_id"], t["theme"], strict=True)))
    closed = more.prompts | _keys(benchmark, contents)
    closed_md5s = {md5s[g] for g in own_grids if g in md5s}
    prompts = {prompt for table in parts.values() for prompt in table["prompt_id"]}
    grids = {grid for table in parts.values() for grid in grids_of(table)}
    refs = {ref for table in parts.values() for side in ("first", "second") for ref in table[side]}
    foreign = {parse_ref(ref)[0] for ref in refs if picture_digest(ref) in more.panels} if more.panels else set()
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
        DataError: when the index has no MD5s.
    """
    if "md5" not in index:
        raise DataError("the shards' index has no column 'md5'; run `dvc repro grids`")
    return {str(name): str(md5) for name, md5 in zip(index["id"], index["md5"], strict=True)}


def grids_of(table: pd.DataFrame) -> set[str]:
    """Grids that a table of pairs or of rankings names."""
    if "candidates" in table:
        refs: Iterable[str] = [*table["reference"], *(ref for refs in table["candidates"] for ref in refs)]
    else:
        refs = [*table["first"], *table["second"]]
    return {parse_ref(ref)[0] for ref in refs}
