"""What another user sees of a project: its files can be read, as far as their modes say, and not be written."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

NOBODY = 65534
VERSION_3 = 0x20080522  # of capset(2): two words of 32 bits each
READ_AND_WRITE_ANYTHING = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 3  # CAP_CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER


def give_away(root: Path) -> str:
    """Make a project another user's, or, where one may not, one that its user may only read; who owns it now."""
    mine = os.geteuid() != 0
    for path in [root, *walk(root)]:
        path.chmod(path.stat().st_mode & ~0o222) if mine else os.chown(path, NOBODY, NOBODY)
    return "yours" if mine else "belongs to"


def take_back(root: Path) -> None:
    """Let it be removed again."""
    for path in [root, *walk(root)]:
        path.chmod(path.stat().st_mode | 0o200) if os.geteuid() else os.chown(path, 0, 0)


def walk(folder: Path) -> Iterator[Path]:
    """Everything below a folder but links, and what they lead to."""
    for path in folder.iterdir():
        if not path.is_symlink():
            yield path
            if path.is_dir():
                yield from walk(path)


def be_nobody_special() -> None:
    """Give up root's rights over other users' files, in this process."""
    if os.geteuid():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, words = (ctypes.c_uint32 * 2)(VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(header, words) == 0:
        for number in (0, 1):  # effective, permitted
            words[number] &= ~READ_AND_WRITE_ANYTHING
        if libc.capset(header, words) == 0:
            return
    raise OSError(ctypes.get_errno(), "capset")
