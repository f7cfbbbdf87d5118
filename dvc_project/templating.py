"""``${a.b}`` in ``dvc.yaml``: the variables in scope and their substitution, as DVC does it.

Variables come from ``params.yaml`` beside ``dvc.yaml``, the top-level ``vars``, a stage's own ``vars``
and, inside ``matrix`` and ``foreach``, ``item`` and ``key``.
"""

from __future__ import annotations

import copy
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dvc_project.errors import DvcProjectError
from dvc_project.yaml import MISSING, lookup, parse_yaml

PARAMS_FILE = "params.yaml"
_PLACE = re.compile(r"(?<!\\)\$\{(?P<inner>.*?)\}")


def read_data(path: Path, read: Callable[[Path], str] = Path.read_text) -> dict[str, Any]:
    """A YAML, JSON or TOML file that holds a mapping; an empty file is an empty mapping.

    YAML is read with the library and the version (1.2) that DVC uses: ``1e-3`` is a number, ``on`` a word.

    Raises:
        DvcProjectError: when the file is missing, malformed, of another kind, or no mapping.
    """
    try:
        text = read(path)
    except OSError as error:
        raise DvcProjectError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DvcProjectError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    try:
        match path.suffix:
            case ".json":
                data = json.loads(text)
            case ".toml":
                data = tomllib.loads(text)
            case ".yaml" | ".yml" | ".lock" | ".dvc":
                data = parse_yaml(text)
            case kind:
                raise DvcProjectError(f"{path}: parameters in {kind!r} files are not read; use YAML, JSON or TOML")
    except (ValueError, RecursionError) as error:
        raise DvcProjectError(f"{path}: {error}") from error
    if data is not None and not isinstance(data, Mapping):
        raise DvcProjectError(f"{path}: expected a mapping, got {type(data).__name__}")
    return dict(data or {})


def is_composite(value: Any) -> bool:
    return isinstance(value, (Mapping, Sequence)) and not isinstance(value, str)


def to_text(value: Any, style: Mapping[str, str] | None = None) -> str:
    """A value inside a longer string. A mapping becomes command-line flags, by DVC's ``parsing`` settings."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return " ".join(_flags(value, style or {}))
    return str(value)


def _flags(tree: Mapping[str, Any], style: Mapping[str, str], prefix: str = "") -> Iterable[str]:
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
            words = [shlex.quote(v) if isinstance(v, str) else str(v) for v in value]
            yield from (f"{flag} {w}" for w in words) if style.get("list") == "append" else [" ".join([flag, *words])]
        else:
            yield f"{flag} {shlex.quote(value) if isinstance(value, str) else value}"


def merge(into: dict[str, Any], update: Mapping[str, Any], where: str) -> None:
    """Merge mappings in place; a leaf may be defined once.

    Raises:
        DvcProjectError: when both define the same leaf.
    """
    for key, value in update.items():
        if isinstance(into.get(key), dict) and isinstance(value, Mapping):
            merge(into[key], value, f"{where}.{key}")
        elif key in into:
            raise DvcProjectError(f"{where}: {key!r} is already defined; rename one of the two")
        else:
            into[key] = copy.deepcopy(value)


class Variables:
    """The variables in scope at one place of a ``dvc.yaml``."""

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        loaded: Iterable[Path] = (),
        style: Mapping[str, str] | None = None,
    ) -> None:
        self.values = copy.deepcopy(dict(values or {}))
        self._loaded, self._style = set(loaded), dict(style or {})

    def including(self, entries: Sequence[str | Mapping[str, Any]], folder: Path, where: str) -> Variables:
        """These and a ``vars`` section: files (``file.yaml``, ``file.yaml:key,key``) and inline mappings."""
        grown = Variables(self.values, self._loaded, self._style)
        for entry in entries:
            if isinstance(entry, str):
                grown._load(entry, folder, where)
            else:
                merge(grown.values, entry, where)
        return grown

    def _load(self, entry: str, folder: Path, where: str) -> None:
        name, _, chosen = entry.partition(":")
        path = (folder / name).resolve()
        if path in self._loaded and not chosen:
            return
        data = read_data(path)
        keys = [key for key in chosen.split(",") if key] if chosen else list(data)
        if missing := [key for key in keys if key not in data]:
            raise DvcProjectError(f"{where}: {path} has no key {missing[0]!r}")
        merge(self.values, {key: data[key] for key in keys}, where)
        self._loaded |= set() if chosen else {path}

    def shadowed(self, names: Mapping[str, Any]) -> Variables:
        """These with ``item`` and ``key`` set."""
        return Variables({**self.values, **names}, self._loaded, self._style)

    def select(self, expression: str, where: str) -> Any:
        """The value of ``a.b[0].c``.

        Raises:
            DvcProjectError: when there is none.
        """
        found = lookup(self.values, expression.replace("[", ".").replace("]", ""))
        if found is MISSING:
            raise DvcProjectError(f"{where}: ${{{expression}}} is not defined in params.yaml, vars, item or key")
        return found

    def resolve(self, value: Any, where: str, in_cmd: bool = False) -> Any:
        """Substitute in strings, and in mappings (keys too) and lists of them."""
        if isinstance(value, Mapping):
            return {self.resolve(k, where, in_cmd): self.resolve(v, where, in_cmd) for k, v in value.items()}
        if isinstance(value, str):
            return self._resolve_text(value, where, in_cmd)
        if isinstance(value, list):
            return [self.resolve(v, where, in_cmd) for v in value]
        return value

    def iterable(self, value: Any, where: str) -> Any:
        """The data of a ``matrix`` or ``foreach``: here a place may hold a list or a mapping."""
        if isinstance(value, Mapping):
            return {k: self.iterable(v, where) for k, v in value.items()}
        if isinstance(value, list):
            return [self.iterable(v, where) for v in value]
        if isinstance(value, str) and (exact := _PLACE.fullmatch(value)):
            return copy.deepcopy(self.select(exact["inner"].strip(), where))
        return self.resolve(value, where)

    def _resolve_text(self, text: str, where: str, in_cmd: bool) -> Any:
        def value_of(place: re.Match[str]) -> Any:
            value = self.select(place["inner"].strip(), where)
            if is_composite(value) and not (in_cmd and isinstance(value, Mapping)):
                raise DvcProjectError(
                    f"{where}: {place[0]} is a {type(value).__name__}; only plain values are allowed here"
                )
            return value

        exact = _PLACE.fullmatch(text)
        if exact and len(_PLACE.findall(text)) == 1:
            value = value_of(exact)
            return to_text(value, self._style) if isinstance(value, Mapping) else value
        filled = _PLACE.sub(lambda place: to_text(value_of(place), self._style), text)
        return filled.replace(r"\${", "${")
