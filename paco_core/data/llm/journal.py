"""An append-only file of JSON lines: what is written down survives a kill at any moment."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from paco_core.io.files import DataError, read_jsonl


class Journal:
    """Rows of earlier runs in :attr:`rows`; :meth:`append` adds one and returns when it is on its way to disk.

    A line that a kill cut short is removed when the file is opened. One process at a time.

    Raises:
        DataError: when another process holds the file, or a whole line of it is no JSON object.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise DataError(f"{path}: a folder, expected a file; remove it")
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.rows = _rows(path, self._file)
        except BlockingIOError:
            self._file.close()
            raise DataError(f"{path}: another process is writing it; wait until it has finished") from None
        except DataError:
            self._file.close()
            raise

    def append(self, row: dict[str, Any]) -> None:
        """Write one row as one line, in one system call."""
        self._file.write(_line(row))
        self._file.flush()
        self.rows.append(row)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SharedJournal:
    """The same file format for several writers, which each hold the file only while they write a line.

    :attr:`rows` holds what lay there at the beginning and what this one added; others' later lines are not read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            self.rows = _rows(path, stream)

    def append(self, row: dict[str, Any]) -> None:
        """Write one row as one line."""
        with self.path.open("a+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            _cut_half_line(stream)
            stream.write(_line(row))
        self.rows.append(row)


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _rows(path: Path, stream: BinaryIO) -> list[dict[str, Any]]:
    """The rows of a file, without what a kill left of a last line."""
    _cut_half_line(stream)
    try:
        return [row for _, row in read_jsonl(path)]
    except DataError as error:
        raise DataError(f"{error}; remove the line") from None


def _cut_half_line(stream: BinaryIO) -> None:
    """Remove what a kill left of a last line."""
    if end := stream.seek(0, os.SEEK_END):
        stream.seek(end - 1)
        if stream.read(1) != b"\n":
            stream.seek(0)
            stream.truncate(stream.read().rfind(b"\n") + 1)
