"""The section ``artifacts`` of ``dvc.yaml``: names, types and labels of paths that people look for."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dvc_project.errors import DvcProjectError


@dataclass(frozen=True)
class Artifact:
    """One entry; its path is relative to the project."""

    name: str
    path: str
    type: str | None
    desc: str | None
    labels: tuple[str, ...]
    meta: Mapping[str, Any]


def artifacts(entries: Any, location: str) -> tuple[Artifact, ...]:
    """All entries of the section.

    Raises:
        DvcProjectError: when it is no mapping, or an entry has no path; ``location`` names the section.
    """
    if not isinstance(entries, Mapping):
        raise DvcProjectError(f"{location}: expected a mapping, got {type(entries).__name__}")
    return tuple(_artifact(str(name), entry, f"{location}.{name}") for name, entry in entries.items())


def _artifact(name: str, entry: Any, location: str) -> Artifact:
    if not isinstance(entry, Mapping) or not entry.get("path"):
        raise DvcProjectError(f"{location}: path is missing")
    labels = entry.get("labels") or ()
    if not isinstance(labels, list | tuple):
        raise DvcProjectError(f"{location}.labels: expected a list, got {type(labels).__name__}")
    path = posixpath.normpath(str(entry["path"]))
    return Artifact(name, path, entry.get("type"), entry.get("desc"), tuple(map(str, labels)), entry.get("meta") or {})
