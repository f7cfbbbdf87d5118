"""Digests of folders and files: DVC's md5s, remembered with those that :mod:`dvc_project.md5s` keeps for the project.

A key that names weights by their content must not read 24 GB at each start.
"""

from __future__ import annotations

from pathlib import Path

from dvc_project.hashing import Workspace, listing_md5
from dvc_project.md5s import Md5s
from dvc_project.repository import repository_of
from paco_core.io.files import DataError
from paco_core.io.project import found_root, owner_root


def content_of(model: Path | str) -> str:
    """What a model is, for keys of what it made.

    Depends on: its files. Holds: the digest of its folder or file; of a hub's repository the name and the commit.

    Raises:
        DataError: when the folder is empty.
    """
    if isinstance(model, str):
        from paco_core.io.hub import revision

        commit = revision(model)
        return f"{model}@{commit}" if commit else model
    return folder_content(model) if model.is_dir() else file_content(model)


def folder_content(folder: Path) -> str:
    """DVC's md5 of a folder: names and contents of all its files, those that a ``.dvcignore`` hides included.

    Raises:
        DataError: when the folder does not exist or is empty.
    """
    md5s = _md5s()
    listing = Workspace(folder.absolute(), md5s, heeding=False).listing(".")
    if not listing:
        raise DataError(f"{folder}: no such folder, or it is empty")
    md5s.save()
    return listing_md5(listing).removesuffix(".dir")


def file_content(path: Path) -> str:
    """The md5 of a file.

    Raises:
        FileNotFoundError: when there is none.
    """
    md5s = _md5s()
    found = md5s(str(path.absolute()))
    md5s.save()
    return found


def _md5s() -> Md5s:
    """Those of the project that is worked in, wherever the files lie; outside of one nothing is remembered."""
    root = found_root()
    return Md5s() if root is None else Md5s.of_repository(repository_of(owner_root(root)))
