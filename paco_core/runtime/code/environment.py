"""What an environment of its own holds, for keys of what is computed in it."""

from __future__ import annotations

import shutil
from pathlib import Path

from paco_core.io.files import digest


def environment_digest(python: str | Path) -> str:
    """Digest of the packages, with versions, that are installed beside an interpreter; "" where none are found.

    They are read off the names of their ``.dist-info`` folders: no process is started for it.
    """
    place = shutil.which(python)
    if place is None:
        return ""
    folders = Path(place).parent.parent.glob("lib/python*/site-packages/*.dist-info")
    names = sorted(folder.name for folder in folders)
    return digest(names, 16) if names else ""
