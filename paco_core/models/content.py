"""Content of models and files, for keys of what they made."""

from __future__ import annotations

from pathlib import Path

from dvc_project.md5s import file_md5
from paco_core.io.files import folder_digest


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
    return folder_digest(model) if model.is_dir() else file_md5(model)
