"""An append-only file of JSON lines: what is written down survives a kill at any moment."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from dvc_project.file_locks import hold, locked
from paco_core.io.files import DataError, read_jsonl


class Journal:
    """Rows of earlier runs in :attr:`rows`; :meth:`append` adds one and returns when it is on its way to disk.

    A line that a kill cut short is removed when the file is opened. One process at a time.

    Raises:
        DataError: when another process holds the file, or a whole line of it is no JSON object.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir():
            raise DataError(f"{path}: a folder, expected a file; remove it")
        try:
            self._file = hold(path)
        except BlockingIOError:
            raise DataError(f"{path}: another process is writing it; wait until it has finished") from None
        try:
            self.rows = _rows(path, self._file)
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
        with locked(path) as stream:
            self.rows = _rows(path, stream)

    def append(self, row: dict[str, Any]) -> None:
        """Write one row as one line."""
        with locked(self.path) as stream:
            _cut_half_line(stream)
            stream.write(_line(row))
        self.rows.append(row)


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _rows(path: Path, stream: IO[bytes]) -> list[dict[str, Any]]:
    """The rows of a file, without what a kill left of a last line."""
    _cut_half_line(stream)
    try:
        return [row for _, row in read_jsonl(path)]
    except DataError as error:
        raise DataError(f"{error}; remove the line") from None


def _cut_half_line(stream: IO[bytes]) -> None:
    """Remove what a kill left of a last line."""
    if end := stream.seek(0, os.SEEK_END):
        stream.seek(end - 1)
        if stream.read(1) != b"\n":
            stream.seek(0)
            stream.truncate(stream.read().rfind(b"\n") + 1)
