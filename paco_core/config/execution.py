"""How to run, apart from what to compute: parameters that no result depends on stand in ``execution`` of the file.

A field says so itself, by the mark :data:`HOW`. In the code it is where it is used: ``execution.serving.port`` of the
file is ``params.serving.port``. So ``dvc.yaml`` lists whole sections, and a key of what was computed leaves the marked
fields out, without a list of them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel

EXECUTION = "execution"
#: Keys of earlier versions that have no place now, and what to do without them. ``paco params --migrate`` deletes them.
_DATA_URLS = "paco fetches no image by URL; send each image as a data URL (data:image/png;base64,...)"
REMOVED = {
    "consistency_rank.dreamsim": "consistency_rank.scored_elsewhere reads a table of DreamSim's scores "
    "(docs/how-to/train-reward-model.md)",
    "execution.serving.allowed_media": _DATA_URLS,
    "serving.allowed_media": _DATA_URLS,
}
SHARED = ".defaults"  # a section of numbers that stand one level deeper than what they are about


@dataclass(frozen=True)
class How:
    """Marks a parameter that changes how something is computed, and not what comes out."""


HOW = How()


def how_fields(section: type[BaseModel]) -> set[str]:
    """The fields of a section that no result depends on."""
    return {name for name, field in section.model_fields.items() if HOW in field.metadata}


def places(whole: type[BaseModel]) -> dict[str, str]:
    """Key below ``execution`` -> key in the code, of every marked field, both dotted."""
    return {EXECUTION + "." + key.replace(SHARED, ""): key for key in _marked(whole, "")}


def _marked(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        if HOW in field.metadata:
            yield f"{prefix}{name}"
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _marked(field.annotation, f"{prefix}{name}.")


def moved(tree: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    """A tree with what stands at some dotted keys put to others; sections that become empty go."""
    made = copy.deepcopy(dict(tree))
    for old, new in keys.items():
        *sections, last = old.split(".")
        above = [made]
        for name in sections:
            inner = above[-1].get(name)
            if not isinstance(inner, dict):
                break
            above.append(inner)
        else:
            if last in above[-1]:
                put(made, new, above[-1].pop(last))
                for outer, name in reversed(list(zip(above[:-1], sections, strict=True))):
                    if not outer[name]:
                        del outer[name]
    return made


def put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key, making the sections that lead to it; a value in the place of a section stays, to be refused."""
    *sections, last = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            return
    tree[last] = value


def has(tree: Any, key: str) -> bool:
    """Whether a tree has a dotted key."""
    for name in key.split("."):
        if not isinstance(tree, Mapping) or name not in tree:
            return False
        tree = tree[name]
    return True


@cache
def earlier_places(whole: type[BaseModel]) -> dict[str, str]:
    """Key of the file in earlier versions -> its key now, as the fields themselves say."""
    how = {place: key for key, place in places(whole).items()}
    found = {old: key for place, key in how.items() for old in (place, place.replace(SHARED, ""))}
    return found | {old: how.get(new, new) for old, new in _renamed(whole, "")}


def _renamed(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    for name, field in section.model_fields.items():
        kind, key = field.annotation, f"{prefix}{name}"
        inner = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
        for mark in field.metadata:
            if isinstance(mark, Was):
                names = [""] if inner is None else [f".{each}" for each in inner.model_fields]
                yield from ((f"{mark.key}{each}", f"{key}{each}") for each in names)
        if inner is not None:
            yield from _renamed(inner, f"{key}.")


@dataclass(frozen=True)
class Was:
    """Marks a key that stood elsewhere in an earlier version; a section, that each of its keys stood in another one."""

    key: str
