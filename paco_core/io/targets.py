"""Output paths of the user, validated before a command computes anything.

Every verb with an output path passes it to :func:`checked` first. An existing path is never overwritten, except a file
by a file of the same kind. Paths of a stage, of DVC or of git are not allowed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from dvc_project.errors import DataError
from dvc_project.project import stages_of
from paco_core.io.atomic import validate_replaceable
from paco_core.io.messages import permission_message, sentence

Kind = Literal["file", "folder", "new folder", "empty folder"]
#: Folders in which tools keep their own.
TOOL_FOLDERS = (".git", ".dvc", ".paco", ".dagster")


def checked(path: Path, kind: Kind, *, suffixes: Sequence[str] = (), inputs: Sequence[Path] = ()) -> Path:
    """Validate an output path of the user, and return it.

    Args:
        kind: ``file``: new or replaced; ``folder``: new, or files are added to it; ``new folder``: the path is free;
            ``empty folder``: the path is free or an empty folder.
        suffixes: allowed suffixes of the file; empty allows all.
        inputs: files that the command reads and must not replace.

    Raises:
        DataError: with the path, the problem and the remedy.
    """
    try:
        _check_place(path, kind)
        writable(path)
        _check_owners(path)
    except OSError as error:  # a name that is too long, links in a circle, a folder that may not be looked into
        raise DataError(sentence(error, path)) from None
    if suffixes and path.suffix.lower() not in suffixes:
        raise DataError(f"{path}: expected a name that ends in {' or '.join(suffixes)}")
    if path.exists() and any(input_path.exists() and path.samefile(input_path) for input_path in inputs):
        raise DataError(f"{path} is what the command reads; name another file to write")
    return path


def _check_place(path: Path, kind: Kind) -> None:
    """Validate the existing file or folder at the path."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    if path.is_symlink() and (kind != "folder" or not path.exists()):
        raise DataError(f"{path} is a link (to {path.readlink()}); name the place itself, or remove the link")
    if kind == "file":
        validate_replaceable(path)
    elif kind == "new folder":
        raise DataError(f"{path} exists already; name a new folder")
    elif not path.is_dir():
        raise DataError(f"{path} is a file; name a folder")
    elif kind == "empty folder" and any(path.iterdir()):
        raise DataError(f"{path} is not empty; name a new folder")


def writable(path: Path) -> None:
    """Check that files can be created at a path: the nearest existing folder is writable.

    Raises:
        DataError: with this folder and its owner.
    """
    folder = path if path.is_dir() else path.parent
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        obstacle = "a link to nothing" if folder.is_symlink() else "a file"
        raise DataError(f"{path}: {folder} is {obstacle}, and nothing can lie below it; name another place")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DataError(f"{path} cannot be written: {permission_message(folder)}")


def _check_owners(path: Path) -> None:
    """Refuse a path of a stage, DVC, git or this library. The command of a stage may write its outputs."""
    place = Path(os.path.realpath(path))
    for above in (place, *place.parents):
        if above.name in TOOL_FOLDERS:
            raise DataError(f"{path} lies in {above}, whose content is not yours to change; name a place outside of it")
        if (track := Path(f"{above}.dvc")).is_file():
            raise DataError(f"{path} lies in {above}, which {track.name} tracks; name a place outside of it")
        for stage in stages_of(above).values():
            for out in stage.outs:
                if place.is_relative_to(above / out.path) and not _runs(stage.name):
                    raise DataError(
                        f"{path} lies in {out.path}, an out of the stage {stage.name}: DVC would take it for a change, "
                        "and remove it; name a place outside of it"
                    )
        if (above / ".dvc").is_dir():
            return  # the project's root, which may be in another project's .dvc, as in experiments


def _runs(stage: str) -> bool:
    """Whether this process is the command of a stage, started by DVC."""
    return os.environ.get("DVC_STAGE", "").rpartition(":")[2] == stage
