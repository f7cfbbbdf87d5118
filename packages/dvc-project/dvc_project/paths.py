"""Paths of a DVC project, relative to its folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

Value = TypeVar("Value")


def replace_text(path: Path, text: str) -> None:
    """Write a text file that readers see complete, either the earlier text or this one."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def overlap(a: str, b: str) -> bool:
    """Whether two paths are the same, or one lies in the other."""
    return a == b or a.startswith(f"{b}/") or b.startswith(f"{a}/")


class Overlaps(Generic[Value]):
    """Values by path; finds those whose path overlaps others (:func:`overlap`) without a comparison of all.

    Args:
        entries: paths and values, in the order in which the values are returned. A path may occur several times.
    """

    def __init__(self, entries: Iterable[tuple[str, Value]]) -> None:
        self._values: list[Value] = []
        self._at: dict[str, list[int]] = {}
        self._below: dict[str, list[int]] = {}
        for number, (path, value) in enumerate(entries):
            self._values.append(value)
            self._at.setdefault(path, []).append(number)
            for folder in _folders(path):
                self._below.setdefault(folder, []).append(number)

    def of(self, paths: Iterable[str]) -> list[Value]:
        """The values whose path overlaps any of these, in order."""
        numbers: set[int] = set()
        for path in paths:
            numbers.update(self._below.get(path, ()))
            for place in (path, *_folders(path)):
                numbers.update(self._at.get(place, ()))
        return [self._values[number] for number in sorted(numbers)]


def _folders(path: str) -> Iterator[str]:
    """The folders that a path lies in, the nearest first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


@dataclass(frozen=True)
class PathResolver:
    """Resolves paths from a stage's ``wdir`` to paths from the project: ``./a``, ``a/`` and ``a`` are equal.

    URLs stay, and absolute paths outside the repository: those inside it are a spelling, too.
    """

    root: Path
    repository: Path
    wdir: str = "."

    def __call__(self, path: str) -> str:
        if "://" in path or (os.path.isabs(path) and not self._is_inside(path)):
            return path
        inside = os.path.normpath(os.path.join(self.wdir, path))
        if not (os.path.isabs(inside) or inside.startswith("..")):  # most paths, and much faster
            return inside
        return os.path.relpath(os.path.join(self.root, self.wdir, path), self.root)

    def spelling(self, path: str) -> str:
        """How DVC's records write a path of ``dvc.yaml``: as it stands there, unless it is absolute and inside."""
        is_absolute = "://" not in path and os.path.isabs(path) and self._is_inside(path)
        return os.path.relpath(path, os.path.join(self.root, self.wdir)) if is_absolute else path

    def _is_inside(self, path: str) -> bool:
        return os.path.normpath(path).startswith(f"{self.repository}/")
