"""Digests of large files, computed once for as long as nobody touches them.

A key that names weights by their content must not read 24 GB at each start. What was read is remembered below
``.paco/digests`` of the project by what changes with each write to a file: its inode, size, and times. The time of the
inode's change (ctime) cannot be set back, so that a file put in another's place with equal size and time is read.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from paco_core.io.files import digest, folder_digest
from paco_core.io.project import found_root, owner_root

FOLDER = Path(".paco") / "digests"
LARGE_BYTES = 64 << 20  # fewer are read each time, which takes a tenth of a second
SETTLED_S = 2.0  # a file changed within the last tick of its file system's clock may change again and look the same


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
    """:func:`paco_core.io.files.folder_digest` of a folder.

    Raises:
        DataError: when the folder does not exist or is empty.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return once(f"folder {folder.resolve()}", files, lambda: folder_digest(folder))


def file_content(path: Path) -> str:
    """MD5 of a file."""

    def read() -> str:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()

    return once("file", [path], read)


def once(what: str, files: Sequence[Path], compute: Callable[[], str]) -> str:
    """``compute()``, or what it gave before where none of ``files`` was touched since.

    Depends on: the contents of ``files`` and on what is computed. Key: ``what``, and of each file its resolved path,
    device, inode, size and both times. Outside of a project nothing is remembered.

    Args:
        what: names the computation; two of them must not share a name.
        files: all that ``compute`` reads.
    """
    states = [path.stat() for path in files]
    root = found_root()
    if root is None or sum(state.st_size for state in states) < LARGE_BYTES:
        return compute()
    place = owner_root(root) / FOLDER / _key(what, files, states)
    if place.is_file() and (known := place.read_text(encoding="ascii")):
        return known
    found = compute()
    settled = max(state.st_ctime for state in states) < time.time() - SETTLED_S
    if settled and place.name == _key(what, files, [path.stat() for path in files]):
        _write(place, found)
    return found


def _key(what: str, files: Sequence[Path], states: Sequence[os.stat_result]) -> str:
    stats = [
        [str(path.resolve()), s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns]
        for path, s in zip(files, states, strict=True)
    ]
    return digest([what, stats], 32)


def _write(place: Path, found: str) -> None:
    """Keep a digest. One that cannot be written costs time, nothing else."""
    part = place.with_name(f".{place.name}.{os.getpid()}.part")  # its own: ranks read the same weights at once
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_text(found, encoding="ascii")
            part.replace(place)
        finally:
            part.unlink(missing_ok=True)
