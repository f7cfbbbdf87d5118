"""Content of models and files, for keys of what they made.

In a project, a file that nobody touched since it was last read is not read again: :mod:`dvc_project.md5s` knows it by
inode, size and times. So 24 GB of weights do not delay each start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dvc_project.md5s import Md5s
from dvc_project.repository import repository_of
from paco_core.io.files import folder_digest
from paco_core.io.project import found_root, owner_root


def content_of(model: Path | str) -> str:
    """What a model is, for keys of what it made.

    Depends on: its files. Holds: the digest of its folder or file; of a hub's repository the name and the commit.

    Raises:
        DataError: when the folder is empty.
    """
    if isinstance(model, str):
        from paco_core.models.hub import revision

        commit = revision(model)
        return f"{model}@{commit}" if commit else model
    with file_md5s() as md5:
        return folder_digest(model, md5) if model.is_dir() else md5(model)


@contextmanager
def file_md5s() -> Iterator[Callable[[Path], str]]:
    """A function that gives the MD5 of a file; outside a project it reads each file."""
    root = found_root()
    md5s = Md5s() if root is None else Md5s.of_repository(repository_of(owner_root(root)))
    try:
        yield lambda path: md5s(os.path.abspath(path))  # noqa: PTH100 - a link to weights stays a link
    finally:
        md5s.save()
