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


def _label(value: Any, template: Any) -> str:
    """An item's part in its stage's name. DVC writes a boolean as ``True`` when it comes from a variable."""
    return str(value) if isinstance(template, str) and "${" in template else to_text(value)


def _labels(axis: str, values: list[Any], template: Any) -> list[str]:
    templates = template if isinstance(template, list) else [template] * len(values)
    return [
        f"{axis}{i}" if is_composite(v) else _label(v, g)
        for i, (v, g) in enumerate(zip(values, templates, strict=True))
    ]


def matrix(
    axes: Mapping[str, Any], template: Mapping[str, Any], location: str
) -> tuple[dict[str, tuple[str, ...]], list[Item]]:
    """The names along each axis, and the items.

    Args:
        axes: the values along each axis, resolved; ``template``: as written in ``dvc.yaml``.
    """
    axes = {axis: list(values) if isinstance(values, Mapping) else values for axis, values in axes.items()}  # its keys
    for axis, values in axes.items():
        if not isinstance(values, list):
            raise DvcProjectError(f"{location}.matrix.{axis}: expected a list, got {type(values).__name__}")
    written = dict(zip(axes, template.values(), strict=True))
    labels = {axis: _labels(axis, values, written[axis]) for axis, values in axes.items()}
    items: dict[str, Item] = {}
    for places in itertools.product(*(range(len(values)) for values in axes.values())):
        chosen = dict(zip(axes, places, strict=True))
        coordinates = {axis: labels[axis][i] for axis, i in chosen.items()}
        key = "-".join(coordinates.values())
        items[key] = Item(key, {"key": key, "item": {a: axes[a][i] for a, i in chosen.items()}}, coordinates)
    return {axis: tuple(dict.fromkeys(names)) for axis, names in labels.items()}, list(items.values())


def foreach(data: Any, template: Any, location: str) -> list[Item]:
    """The items of a list, by value or number, or of a mapping, by key; ``template`` is its text in ``dvc.yaml``."""
    if isinstance(data, Mapping):
        names_by_key = {to_text(key): {"key": to_text(key), "item": value} for key, value in data.items()}
    elif isinstance(data, list):
        templates = template if isinstance(template, list) else [template] * len(data)
        by_index = any(map(is_composite, data))
        keys = [str(i) if by_index else _label(v, g) for i, (v, g) in enumerate(zip(data, templates, strict=True))]
        names_by_key = {key: {"item": value} for key, value in zip(keys, data, strict=True)}
    else:
        raise DvcProjectError(f"{location}.foreach: expected a list or a mapping, got {type(data).__name__}")
    return [Item(key, names, {"item": key}) for key, names in names_by_key.items()]
