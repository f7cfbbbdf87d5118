"""``${a.b}`` in ``dvc.yaml``: the variables in scope and their substitution, as DVC does it.

Variables come from ``params.yaml`` beside ``dvc.yaml``, the top-level ``vars``, a stage's own ``vars``
and, inside ``matrix`` and ``foreach``, ``item`` and ``key``.
"""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dvc_project.errors import DvcProjectError
from dvc_project.reading import read_data
from dvc_project.yaml import MISSING, get_dotted

PARAMS_FILE = "params.yaml"
_PLACE = re.compile(r"(?<!\\)\$\{(?P<inner>.*?)\}")


def is_composite(value: Any) -> bool:
    return isinstance(value, (Mapping, Sequence)) and not isinstance(value, str)


def to_text(value: Any, style: Mapping[str, str] | None = None) -> str:
    """A value inside a longer string. A mapping becomes command-line flags, by DVC's ``parsing`` settings.

    Raises:
        DvcProjectError: for a list in a list, which no flag can say.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return " ".join(_flags(value, style or {}))
    return str(value)


def _flags(tree: Mapping[str, Any], style: Mapping[str, str], prefix: str = "") -> Iterable[str]:
    """An empty list or mapping is no flag."""
    for key, value in tree.items():
        flag = f"--{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flags(value, style, f"{prefix}{key}.")
        elif isinstance(value, bool):
            if value:
                yield flag
            elif style.get("bool") == "boolean_optional":
                yield f"--no-{prefix}{key}"
        elif is_composite(value):
            if nested := [v for v in value if is_composite(v)]:
                raise DvcProjectError(f"{prefix}{key}: cannot be put into a command: {nested[0]!r} lies in a list")
            words = [shlex.quote(v) if isinstance(v, str) else str(v) for v in value]
            if style.get("list") == "append":
                yield from (f"{flag} {word}" for word in words)
            elif words:
                yield " ".join([flag, *words])
        else:
            yield f"{flag} {shlex.quote(value) if isinstance(value, str) else value}"


def merge(into: dict[str, Any], update: Mapping[str, Any], location: str) -> None:
    """Merge mappings in place; a leaf may be defined once.

    Raises:
        DvcProjectError: when both define the same leaf.
    """
    for key, value in _string_keys(update).items():
        if isinstance(into.get(key), dict) and isinstance(value, Mapping):
            merge(into[key], value, f"{location}.{key}")
        elif key in into:
            raise DvcProjectError(f"{location}: {key!r} is already defined; rename one of the two")
        else:
            into[key] = copy.deepcopy(value)


def _whole_place(text: str) -> re.Match[str] | None:
    """The one ``${...}`` that a text is."""
    places = list(_PLACE.finditer(text))
    return places[0] if len(places) == 1 and places[0][0] == text else None


def _string_keys(tree: Any) -> Any:
    """Mappings without the keys that are no text: no ``${...}`` reaches them."""
    if isinstance(tree, Mapping):
        return {key: _string_keys(value) for key, value in tree.items() if isinstance(key, str)}
    return [_string_keys(value) for value in tree] if isinstance(tree, list) else tree


class Variables:
    """The variables in scope at one place of a ``dvc.yaml``."""

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        loaded: Iterable[Path] = (),
        style: Mapping[str, str] | None = None,
    ) -> None:
        self.values = dict(values or {})
        self._loaded, self._style = set(loaded), dict(style or {})

    def including(self, entries: Sequence[str | Mapping[str, Any]], folder: Path, location: str) -> Variables:
        """These and a ``vars`` section: files (``file.yaml``, ``file.yaml:key,key``) and inline mappings."""
        grown = Variables(copy.deepcopy(self.values), self._loaded, self._style)
        for entry in entries:
            if isinstance(entry, str):
                grown._load(entry, folder, location)
            else:
                merge(grown.values, entry, location)
        return grown

    def _load(self, entry: str, folder: Path, location: str) -> None:
        name, _, chosen = entry.partition(":")
        path = (folder / name).resolve()
        if path in self._loaded and not chosen:
            return
        data = read_data(path)
        keys = [key for key in chosen.split(",") if key] if chosen else list(data)
        if missing := [key for key in keys if key not in data]:
            raise DvcProjectError(f"{location}: {path} has no key {missing[0]!r}")
        merge(self.values, {key: data[key] for key in keys}, location)
        self._loaded |= set() if chosen else {path}

    def shadowed(self, names: Mapping[str, Any]) -> Variables:
        """These with ``item`` and ``key`` set."""
        return Variables({**self.values, **names}, self._loaded, self._style)

    def select(self, expression: str, location: str) -> Any:
        """The value of ``a.b[0].c``.

        Raises:
            DvcProjectError: when there is none.
        """
        value = get_dotted(self.values, expression.replace("[", ".").replace("]", ""))
        if value is MISSING:
            raise DvcProjectError(f"{location}: ${{{expression}}} is not defined in params.yaml, vars, item or key")
        return value

    def resolve(self, value: Any, location: str, in_cmd: bool = False) -> Any:
        """Substitute in strings, and in mappings (keys too) and lists of them."""
        if isinstance(value, Mapping):
            return {self.resolve(k, location, in_cmd): self.resolve(v, location, in_cmd) for k, v in value.items()}
        if isinstance(value, str):
            return self._resolve_text(value, location, in_cmd)
        if isinstance(value, list):
            return [self.resolve(v, location, in_cmd) for v in value]
        return value

    def iterable(self, value: Any, location: str) -> Any:
        """The data of a ``matrix`` or ``foreach``, or a top-level section: a place may hold a list or a mapping."""
        if isinstance(value, Mapping):
            return {self.resolve(k, location): self.iterable(v, location) for k, v in value.items()}
        if isinstance(value, list):
            return [self.iterable(v, location) for v in value]
        if isinstance(value, str) and (exact := _whole_place(value)):
            return copy.deepcopy(self.select(exact["inner"].strip(), location))
        return self.resolve(value, location)

    def _resolve_text(self, text: str, location: str, in_cmd: bool) -> Any:
        if "$" not in text:  # most texts
            return text

        def value_of(place: re.Match[str]) -> Any:
            value = self.select(place["inner"].strip(), location)
            if is_composite(value) and not (in_cmd and isinstance(value, Mapping)):
                raise DvcProjectError(
                    f"{location}: {place[0]} is a {type(value).__name__}; only plain values are allowed here"
                )
            return value

        if exact := _whole_place(text):
            value = value_of(exact)
            return to_text(value, self._style) if isinstance(value, Mapping) else value
        filled = _PLACE.sub(lambda place: to_text(value_of(place), self._style), text)
        return filled.replace(r"\${", "${")
