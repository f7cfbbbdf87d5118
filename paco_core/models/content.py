"""Digests of models and files, for cache keys.

In a project, unchanged files are not read again: :mod:`dvc_project.md5s` recognizes them by inode, size and times. For
example, 24 GB of weights do not delay each start.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dvc_project.md5s import Md5s
from dvc_project.repository import repository_of
from paco_core.io.files import digest, files_below, folder_digest
from paco_core.io.project import find_root, owner_root


def content_of(model: Path | str) -> str:
    """Identity of a model, for cache keys: the digest of its folder or file, or name and commit of a hub repository.

    Raises:
        DataError: if the folder is empty.
    """
    if isinstance(model, str):
        from paco_core.models.hub import revision

        commit = revision(model)
        return f"{model}@{commit}" if commit else model
    place = model.absolute()
    with md5s_of_project() as md5s:
        if not place.is_dir():
            return md5s(str(place))
        files = [str(path) for path in files_below(place)]
        return md5s.of(f"{place}: {digest(files)}", files, lambda: folder_digest(place))


@contextmanager
def md5s_of_project() -> Iterator[Md5s]:
    """The cached MD5s of this project. Outside a project, each file is read."""
    root = find_root()
    md5s = Md5s() if root is None else Md5s.of_repository(repository_of(owner_root(root)))
    try:
        yield md5s
    finally:
        md5s.save()
