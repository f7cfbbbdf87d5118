"""Paths of a DVC project, relative to its folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


def overlap(a: str, b: str) -> bool:
    """Whether two paths are the same, or one lies in the other."""
    return a == b or a.startswith(f"{b}/") or b.startswith(f"{a}/")


@dataclass(frozen=True)
class Placer:
    """Makes paths of a stage, relative to its ``wdir``, relative to the project: ``./a``, ``a/`` and ``a`` are one.

    URLs stay, and absolute paths outside the repository: those inside it are a spelling, too.
    """

    root: Path
    repository: Path
    wdir: str = "."

    def __call__(self, path: str) -> str:
        if "://" in path or (os.path.isabs(path) and not self._is_inside(path)):
            return path
        return os.path.relpath(os.path.join(self.root, self.wdir, path), self.root)

    def spelling(self, path: str) -> str:
        """How DVC's records write a path of ``dvc.yaml``: as it stands there, unless it is absolute and inside."""
        is_absolute = "://" not in path and os.path.isabs(path) and self._is_inside(path)
        return os.path.relpath(path, os.path.join(self.root, self.wdir)) if is_absolute else path

    def _is_inside(self, path: str) -> bool:
        return os.path.normpath(path).startswith(f"{self.repository}/")
