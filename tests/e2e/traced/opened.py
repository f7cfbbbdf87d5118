"""Paths of files below a folder that any process opens.

By inotify: libraries in C++ and Rust open files unseen by Python.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Iterable
from pathlib import Path

IN_OPEN, IN_ISDIR, IN_NONBLOCK = 0x20, 0x40000000, 0o4000
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name behind it


class Opened:
    """Collects from its creation until :meth:`stop`."""

    def __init__(self, root: Path, skip: Iterable[str]) -> None:
        """``skip`` are names of folders that are not watched."""
        libc = ctypes.CDLL(None, use_errno=True)
        self._stream = libc.inotify_init1(IN_NONBLOCK)
        self._folders: dict[int, str] = {}
        for folder, inside, _ in os.walk(root):
            inside[:] = [name for name in inside if name not in skip]
            watch = libc.inotify_add_watch(self._stream, os.fsencode(folder), IN_OPEN)
            assert watch >= 0, os.strerror(ctypes.get_errno())
            self._folders[watch] = os.path.relpath(folder, root)
        self.paths: set[str] = set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    def stop(self) -> set[str]:
        """The paths, relative to the root."""
        self._stopped.set()
        self._thread.join()
        os.close(self._stream)
        return self.paths

    def _collect(self) -> None:
        while not self._stopped.wait(0.02):
            self._read()
        self._read()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._stream, 1 << 20)
            except BlockingIOError:
                return
            at = 0
            while at < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, at)
                name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0")
                at += _EVENT.size + length
                if name and not mask & IN_ISDIR:
                    self.paths.add(os.path.normpath(f"{self._folders[watch]}/{os.fsdecode(name)}"))
