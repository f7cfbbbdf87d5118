"""The items of a ``matrix`` or ``foreach``, each with the name of its stage and its variables."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dvc_project.errors import DvcProjectError
from dvc_project.templating import is_composite, to_text


@dataclass(frozen=True)
class Item:
    """One of them; ``key`` is None for a plain stage."""

    key: Any
    names: Mapping[str, Any]
    coordinates: Mapping[str, str]


def _label(value: Any, given: Any) -> str:
    """An item's part in its stage's name. DVC writes a boolean as ``True`` when it comes from a variable."""
    return str(value) if isinstance(given, str) and "${" in given else to_text(value)


def _labels(axis: str, values: list[Any], given: Any) -> list[str]:
    each = given if isinstance(given, list) else [given] * len(values)
    return [
        f"{axis}{i}" if is_composite(v) else _label(v, g) for i, (v, g) in enumerate(zip(values, each, strict=True))
    ]


def matrix(
    axes: Mapping[str, Any], given: Mapping[str, Any], where: str
) -> tuple[dict[str, tuple[str, ...]], list[Item]]:
    """The names along each axis, and the items.

    Args:
        axes: the values along each axis, resolved; ``given`` as they are written.
    """
    axes = {axis: list(values) if isinstance(values, Mapping) else values for axis, values in axes.items()}  # its keys
    for axis, values in axes.items():
        if not isinstance(values, list):
            raise DvcProjectError(f"{where}.matrix.{axis}: expected a list, got {type(values).__name__}")
    written = dict(zip(axes, given.values(), strict=True))
    labels = {axis: _labels(axis, values, written[axis]) for axis, values in axes.items()}
    items: dict[str, Item] = {}
    for places in itertools.product(*(range(len(values)) for values in axes.values())):
        chosen = dict(zip(axes, places, strict=True))
        coordinates = {axis: labels[axis][i] for axis, i in chosen.items()}
        key = "-".join(coordinates.values())
        items[key] = Item(key, {"key": key, "item": {a: axes[a][i] for a, i in chosen.items()}}, coordinates)
    return {axis: tuple(dict.fromkeys(names)) for axis, names in labels.items()}, list(items.values())


def foreach(data: Any, given: Any, where: str) -> list[Item]:
    """The items of a list, by value or number, or of a mapping, by key; ``given`` is how it is written."""
    if isinstance(data, Mapping):
        named = {to_text(key): {"key": to_text(key), "item": value} for key, value in data.items()}
    elif isinstance(data, list):
        each = given if isinstance(given, list) else [given] * len(data)
        by_index = any(map(is_composite, data))
        keys = [str(i) if by_index else _label(v, g) for i, (v, g) in enumerate(zip(data, each, strict=True))]
        named = {key: {"item": value} for key, value in zip(keys, data, strict=True)}
    else:
        raise DvcProjectError(f"{where}.foreach: expected a list or a mapping, got {type(data).__name__}")
    return [Item(key, names, {"item": key}) for key, names in named.items()]
