"""Data that ``*.dvc`` files track: added with ``dvc add``, or imported with ``dvc import`` and ``dvc import-url``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dvc_project.errors import DvcProjectError
from dvc_project.hashing import Workspace
from dvc_project.paths import PathResolver
from dvc_project.reading import read_data


@dataclass(frozen=True)
class Tracked:
    """An out of a ``.dvc`` file; paths are relative to the project."""

    path: str
    file: str  # the .dvc file
    md5: str | None
    bytes: int | None
    files: int | None  # of a folder
    origin: str | None  # URL, or repository and path, that it was imported from
    desc: str | None
    meta: Mapping[str, Any]


def tracked(workspace: Workspace, repository: Path) -> list[Tracked]:
    """All outs of the ``.dvc`` files of a DVC repository, by path.

    Raises:
        DvcProjectError: when one is malformed.
    """
    root, top = workspace.root, os.path.relpath(repository, workspace.root)
    place = PathResolver(root, repository)
    files = [place(f"{top}/{file}") for file in workspace.files(top) if file.endswith(".dvc")]
    return sorted((out for file in files for out in _outs(root, repository, file)), key=lambda out: out.path)


def _outs(root: Path, repository: Path, file: str) -> Iterator[Tracked]:
    """The outs of one file; it may have none."""
    tree = read_data(root / file)
    outs = [] if tree.get("outs") is None else tree["outs"]
    if not isinstance(outs, list):
        raise DvcProjectError(f"{root / file}: outs: expected a list")
    place = PathResolver(root, repository, f"{os.path.dirname(file) or '.'}/{tree.get('wdir') or '.'}")
    origin = _origin((tree.get("deps") or [None])[0])
    for out in outs:
        if not isinstance(out, Mapping) or "path" not in out:
            raise DvcProjectError(f"{root / file}: outs: expected mappings with a path")
        yield Tracked(
            place(str(out["path"])), file, out.get("md5"), out.get("size"),
            out.get("nfiles"), origin, out.get("desc") or tree.get("desc"), out.get("meta") or tree.get("meta") or {},
        )  # fmt: skip


def _origin(dep: Any) -> str | None:
    if not isinstance(dep, Mapping):
        return None
    repo = dep.get("repo")
    if not isinstance(repo, Mapping):
        return str(dep.get("path"))
    revision = repo.get("rev_lock") or repo.get("rev")
    return f"{repo.get('url')}{'@' + str(revision) if revision else ''}: {dep.get('path')}"
