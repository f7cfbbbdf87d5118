"""Readings of source files, kept from process to process: parsing all of the project takes a second."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paco_core.io import files
from paco_core.io.messages import kept_if_possible
from paco_core.runtime.code import source
from paco_core.runtime.code.source import Source

FORMAT = 4


def bytes_digest(path: Path) -> str:
    """Digest of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]


class SourceCache:
    """:func:`source.read` by the bytes of a file; with ``path`` None nothing is kept on disk."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._known: dict[str, Source] = self._load()
        self._used: dict[str, Source] = {}
        self._files: dict[Path, Source] = {}

    def read(self, file: Path, package: str) -> Source:
        """The code of a file.

        Raises:
            DataError: when it is no Python.
        """
        if file not in self._files:
            data = file.read_bytes()
            key = reading_key(data, package)
            self._used[key] = self._known.get(key) or source.read(data, str(file), package)
            self._files[file] = self._used[key]
        return self._files[file]

    def save(self) -> None:
        """Keep what was read since the start. A cache that cannot be written costs time, nothing else."""
        if self.path is None or self._used.keys() <= self._known.keys():
            return
        self._known |= self._used
        tree = {"made_by": _maker(), "sources": {key: asdict(found) for key, found in self._used.items()}}
        with kept_if_possible("readings of the project's code"):
            files.write_text(self.path, json.dumps(tree))

    def _load(self) -> dict[str, Source]:
        try:
            tree = json.loads(self.path.read_text(encoding="utf-8")) if self.path else {}
            if tree.get("made_by") != _maker():
                return {}
            return {key: _source(given) for key, given in tree["sources"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # missing, or cut off: it is made again
            return {}


def reading_key(data: bytes, package: str) -> str:
    """What a reading depends on: a file's bytes, and the package that its relative imports start from. The file that
    keeps readings holds who read (:func:`_maker`); where the source lies changes no more than the text of an error."""
    return f"{package} {hashlib.sha256(data).hexdigest()[:32]}"


def _source(tree: dict[str, Any]) -> Source:
    imports, named, beside = tuple(tree["imports"]), tuple(tree["named"]), tuple(tree["beside"])
    return Source(str(tree["digest"]), imports, named, tuple(dict(table) for table in tree["registries"]), beside)


def _maker() -> list[object]:
    """What another reading would come from: this format, and the parser of this Python."""
    return [FORMAT, bytes_digest(Path(source.__file__)), *sys.version_info[:2]]
