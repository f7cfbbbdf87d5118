"""A disk that is full at will: a small tmpfs where one may be mounted."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

PAGE = 4096  # a tmpfs counts in these


@dataclass(frozen=True)
class Disk:
    """A file system of its own."""

    folder: Path

    @property
    def _filler(self) -> Path:
        return self.folder / ".filler"

    def leave(self, free: int) -> None:
        """Fill all but so many bytes, rounded up to pages."""
        self.empty()
        have = shutil.disk_usage(self.folder).free
        with self._filler.open("wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, max(PAGE, have - (free + PAGE - 1) // PAGE * PAGE))

    def empty(self) -> None:
        """Give back what :meth:`leave` took."""
        self._filler.unlink(missing_ok=True)


@contextmanager
def mounted(folder: Path, megabytes: int) -> Iterator[Disk]:
    """A tmpfs of that size; skips the test where none may be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no `mount` here, so that no small disk can be made")
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here (it takes root): {done.stderr.strip()}")
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
