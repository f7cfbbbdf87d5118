"""Execution parameters: settings that no result depends on, in the section ``execution`` of ``params.yaml``.

The mark :data:`EXECUTION_ONLY` declares such a field. In the code it stays in its section: the key
``execution.serving.port`` is ``params.serving.port``. So ``dvc.yaml`` can list complete sections, and cache keys leave
out the marked fields without a list of them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel

EXECUTION = "execution"
#: Removed keys, and what to do instead. ``paco params --migrate`` deletes them.
_DATA_URLS = "paco fetches no image by URL; send each image as a data URL (data:image/png;base64,...)"
REMOVED = {
    "consistency_rank.dreamsim": "consistency_rank.scored_elsewhere reads a table of DreamSim's scores "
    "(docs/how-to/train-reward-model.md)",
    "execution.serving.allowed_media": _DATA_URLS,
    "serving.allowed_media": _DATA_URLS,
}
SHARED = ".defaults"  # ``execution`` leaves this level out


@dataclass(frozen=True)
class ExecutionOnly:
    """Mark of a parameter that does not affect results, for example a number of threads."""


EXECUTION_ONLY = ExecutionOnly()


def execution_fields(section: type[BaseModel]) -> set[str]:
    """The fields of a section with the mark :data:`EXECUTION_ONLY`."""
    return {name for name, field in section.model_fields.items() if EXECUTION_ONLY in field.metadata}


def places(root_section: type[BaseModel]) -> dict[str, str]:
    """Key below ``execution`` -> key in the code, of every marked field, both dotted."""
    return {EXECUTION + "." + key.replace(SHARED, ""): key for key in _marked(root_section, "")}


def _marked(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        if EXECUTION_ONLY in field.metadata:
            yield f"{prefix}{name}"
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _marked(field.annotation, f"{prefix}{name}.")


def moved(tree: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    """A copy of a tree with values moved between dotted keys (old -> new). Empty sections are removed."""
    result = copy.deepcopy(dict(tree))
    for old, new in keys.items():
        *sections, last = old.split(".")
        above = [result]
        for name in sections:
            inner = above[-1].get(name)
            if not isinstance(inner, dict):
                break
            above.append(inner)
        else:
            if last in above[-1]:
                put(result, new, above[-1].pop(last))
                for outer, name in reversed(list(zip(above[:-1], sections, strict=True))):
                    if not outer[name]:
                        del outer[name]
    return result


def put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key, and add its sections. A value in the place of a section stays, and validation rejects it."""
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
def earlier_places(root_section: type[BaseModel]) -> dict[str, str]:
    """Key of an earlier version -> current key, from the marks :class:`RenamedFrom`."""
    by_place = {place: key for key, place in places(root_section).items()}
    current_keys = {old: key for place, key in by_place.items() for old in (place, place.replace(SHARED, ""))}
    return current_keys | {old: by_place.get(new, new) for old, new in _renamed(root_section, "")}


def _renamed(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    for name, field in section.model_fields.items():
        kind, key = field.annotation, f"{prefix}{name}"
        inner = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
        for mark in field.metadata:
            if isinstance(mark, RenamedFrom):
                names = [""] if inner is None else [f".{name_below}" for name_below in inner.model_fields]
                yield from ((f"{mark.key}{name_below}", f"{key}{name_below}") for name_below in names)
        if inner is not None:
            yield from _renamed(inner, f"{key}.")


@dataclass(frozen=True)
class RenamedFrom:
    """Mark of a key with its name in an earlier version. On a section, the mark applies to each of its keys."""

    key: str
