"""Paths that begin with ``~``: the home folder of a user, in parameters and in arguments."""

from __future__ import annotations

from pathlib import Path


def expand_home(path: str) -> str:
    """A path that begins with ``~`` or ``~name``, with the folder of that user in its place.

    Raises:
        ValueError: if there is no such user.
    """
    if not path.startswith("~"):
        return path
    try:
        return str(Path(path).expanduser())
    except RuntimeError:
        raise ValueError(f"{path!r} begins with ~, and there is no such user; write the complete path") from None
