"""DVC's own status of a project, read in this process, because DVC's command takes a second to start."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dvc.repo import Repo

from dvc_project.project import DvcProject
from dvc_project.state import ProjectState

SETTINGS = "[core]\n    no_scm = True\n    analytics = false\n    check_update = false\n"


def lay_out(root: Path, files: Mapping[str, str | bytes], settings: str = "") -> Path:
    """A DVC repository with these files, by path."""
    (root / ".dvc").mkdir(parents=True)
    (root / ".dvc/config").write_text(SETTINGS + settings)
    write(root, files)
    return root


def write(root: Path, files: Mapping[str, str | bytes]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())


@contextmanager
def repository(folder: Path) -> Iterator[Repo]:
    """DVC's view of the repository that a folder lies in, as a command there would have it."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        with Repo() as repo:
            yield repo
    finally:
        os.chdir(before)


def reproduce(folder: Path, *targets: str) -> None:
    with repository(folder) as repo:
        repo.reproduce(list(targets) or None)


def stages(folder: Path) -> dict[str, dict[str, Any]]:
    """Stages of the ``dvc.yaml`` of a folder: command, paths and parameters as DVC resolves them."""
    with repository(folder) as repo:
        stages = repo.stage.collect("dvc.yaml")
        return {
            stage.name: {
                "cmd": stage.cmd,
                "deps": {_path(folder, dep) for dep in stage.deps if not hasattr(dep, "params")},
                "params": {
                    _path(folder, dep): set(dep.params) for dep in stage.deps if hasattr(dep, "params")
                },
                "outs": {_path(folder, out): (out.use_cache, out.persist) for out in stage.outs},
                "flags": (bool(stage.frozen), bool(stage.always_changed)),
            }
            for stage in stages
        }  # fmt: skip


def _path(folder: Path, entry: Any) -> str:
    return os.path.relpath(entry.fs_path, folder) if entry.protocol == "local" and entry.is_in_repo else entry.def_path


def edges(folder: Path) -> set[tuple[str, str]]:
    """(reader, maker) within the folder's ``dvc.yaml``."""
    with repository(folder) as repo:
        names = {stage: stage.name for stage in repo.stage.collect("dvc.yaml")}
        return {(names[a], names[b]) for a, b in repo.index.graph.edges if a in names and b in names}


def changed(folder: Path) -> set[str]:
    """The stages of the folder's ``dvc.yaml`` that ``dvc status`` names."""
    with repository(folder) as repo:
        return set(repo.status()) & {stage.name for stage in repo.stage.collect("dvc.yaml")}


def ours(folder: Path) -> set[str]:
    """The same by :class:`ProjectState`."""
    return {state.stage.name for state in ProjectState(DvcProject(folder)).all() if not state.in_sync}


def agreed(folder: Path) -> set[str]:
    """The changed stages, of which both say the same."""
    theirs = changed(folder)
    assert ours(folder) == theirs
    return theirs


def same_graph(folder: Path) -> DvcProject:
    """Stages, commands, paths, flags, parameters and edges are DVC's."""
    project = DvcProject(folder)
    assert {
        name: {
            "cmd": stage.cmd,
            "deps": set(stage.deps),
            "params": {file: set(keys) for file, keys in stage.params.items()},
            "outs": {out.path: (out.cache, out.persist) for out in stage.outs},
            "flags": (stage.frozen, stage.always_changed),
        }
        for name, stage in project.stages.items()
    } == stages(folder)
    assert {(name, up) for name, ups in project.upstream.items() for up in ups} == edges(folder)
    return project
