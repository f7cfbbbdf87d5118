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
            self.rows = self._read()
        except BlockingIOError:
            self._file.close()
            raise DataError(f"{path}: another process is writing it; wait until it has finished") from None
        except DataError:
            self._file.close()
            raise

    def _read(self) -> list[dict[str, Any]]:
        self._file.seek(0)
        data = self._file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            self._file.truncate(whole)
        rows = []
        for number, line in enumerate(data[:whole].splitlines(), start=1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(f"{self.path}:{number}: not valid JSON ({error}); remove the line") from None
            if not isinstance(row, dict):
                raise DataError(f"{self.path}:{number}: expected a JSON object; remove the line")
            rows.append(row)
        return rows

    def append(self, row: dict[str, Any]) -> None:
        """Write one row as one line, in one system call."""
        self._file.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n")
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
            _cut_half_line(stream)
        self.rows: list[dict[str, Any]] = [row for _, row in read_jsonl(path)]

    def append(self, row: dict[str, Any]) -> None:
        """Write one row as one line."""
        with self.path.open("a+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            _cut_half_line(stream)
            stream.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        self.rows.append(row)


def _cut_half_line(stream: BinaryIO) -> None:
    """Remove what a kill left of a last line."""
    if end := stream.seek(0, os.SEEK_END):
        stream.seek(end - 1)
        if stream.read(1) != b"\n":
            stream.seek(0)
            stream.truncate(stream.read().rfind(b"\n") + 1)
