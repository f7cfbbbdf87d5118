"""``dvc.lock``: what DVC recorded of the last run of each stage.

DVC cuts the file and writes it anew, which takes up to half a second; a part of it is often valid YAML, too. While it
does, it holds ``.dvc/tmp/lock``: who reads under a share of that lock reads a whole file.

What decides what a stage makes are its *inputs*: the md5 of each dep, and its slice of the parameters.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from dvc_project.errors import DvcProjectError, MergeConflictError
from dvc_project.file_locks import shared
from dvc_project.hashing import hash_json
from dvc_project.paths import Overlaps
from dvc_project.reading import read_data
from dvc_project.repository import tmp_folder

LOCK_FILE = "dvc.lock"
_POLL_SECONDS, _SETTLED_SECONDS = 0.05, 2.0
_SCHEMA = "2.0"  # of DVC 2 and 3
_MD5S = ("md5", "etag", "checksum")


@dataclass(frozen=True)
class Inputs:
    """Inputs by md5 and parameters by file and dotted key."""

    deps: Mapping[str, str]
    params: Mapping[str, Mapping[str, Any]]

    @property
    def digest(self) -> str:
        """Equal for equal inputs and parameters, in whatever order they are written."""
        tree = {"deps": dict(self.deps), "params": {f: dict(v) for f, v in self.params.items()}}
        text = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Entry:
    """What ``dvc.lock`` records of the last run of one stage (``grids@0`` for an item): md5s by path.

    ``spellings`` is how the file writes each path: DVC finds a record by the path that ``dvc.yaml`` writes, letter by
    letter.
    """

    stage: str
    cmd: str | list[str]
    inputs: Inputs
    outs: Mapping[str, str]
    spellings: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """What was run, in one line."""
        return self.cmd if isinstance(self.cmd, str) else " && ".join(self.cmd)

    @property
    def digest(self) -> str:
        """Changes with any run whose command, inputs, parameters or results differ."""
        return hash_json([self.cmd, self.inputs.deps, self.inputs.params, self.outs])

    @classmethod
    def from_tree(cls, stage: str, tree: Mapping[str, Any], place: Callable[[str], str] = str) -> Entry:
        """An entry as it stands in the file; ``place`` gives the project-relative path of one in the entry."""
        entries = {kind: {place(str(e["path"])): e for e in tree.get(kind) or []} for kind in ("deps", "outs")}
        files = {
            place(str(file)): (str(file), dict(values or {})) for file, values in (tree.get("params") or {}).items()
        }
        every = {**entries["deps"], **entries["outs"]}
        return cls(
            stage,
            tree.get("cmd", ""),
            Inputs({p: _md5(e) for p, e in entries["deps"].items()}, {p: values for p, (_, values) in files.items()}),
            {p: _md5(e) for p, e in entries["outs"].items()},
            {p: str(e["path"]) for p, e in every.items()} | {p: file for p, (file, _) in files.items()},
        )


def _md5(entry: Mapping[str, Any]) -> str:
    if "dataset" in entry:
        return dataset_digest(entry["dataset"])
    return str(entry.get("md5") or entry.get("etag") or entry.get("checksum") or "")


def dataset_digest(pinned: Mapping[str, Any] | None) -> str:
    """What changes when a data set (``ds://NAME``) is pinned to other data; empty where it is not pinned."""
    return hash_json({key: value for key, value in pinned.items() if value not in (None, "", [])}) if pinned else ""


@dataclass(frozen=True)
class Lock:
    """``dvc.lock``, read once; ``datasets`` by name, as they are pinned."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    root: Path | None = None
    datasets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Path, places: Mapping[str, Callable[[str], str]] | None = None) -> Lock:
        """The lock of a project; empty where nothing was run by DVC yet.

        Args:
            places: stages to read, each with what makes its paths relative to the project; all, as they stand, when
                None.

        Raises:
            DvcProjectError: when DVC would refuse the file.
        """
        path = root / LOCK_FILE
        if not path.is_file():
            return cls()
        try:
            tree = read_data(path, whole_text)
        except MergeConflictError:
            raise
        except DvcProjectError as error:  # cut off by a killed DVC, for example
            raise _unusable(str(error)) from None
        if wrong := _schema_error(tree):
            raise _unusable(f"{path}: not in DVC's format (DVC: validation failed: {wrong})")
        stages = {str(name): entry for name, entry in (tree.get("stages") or {}).items()}
        resolvers = dict.fromkeys(stages, str) if places is None else places
        entries = {
            name: Entry.from_tree(name, stages[name], place) for name, place in resolvers.items() if name in stages
        }
        pinned = tree.get("datasets") or []
        return cls(entries, root, {str(d["name"]): d for d in pinned if isinstance(d, Mapping) and "name" in d})

    def maker(self, path: str) -> Entry | None:
        """The stage whose out is ``path`` or holds it."""
        holds = (entry for entry in self.makers(path) if any(f"{path}/".startswith(f"{out}/") for out in entry.outs))
        return next(holds, None)

    def makers(self, path: str) -> list[Entry]:
        """The stages whose outs are, hold or lie below ``path`` (``data/grids`` is made by all shards)."""
        return [self.entries[stage] for stage in dict.fromkeys(self._makers.of([path]))]

    @cached_property
    def _makers(self) -> Overlaps[str]:
        """The names of the stages by the paths of their outs."""
        return Overlaps((out, stage) for stage, entry in self.entries.items() for out in entry.outs)

    def md5_of(self, path: str) -> str | None:
        """The recorded md5 of an out."""
        entry = self.maker(path)
        return entry.outs.get(path) if entry else None


def _unusable(problem: str) -> DvcProjectError:
    return DvcProjectError(
        f"{problem}; restore it with `git checkout -- {LOCK_FILE}`, or move it away: `dvc repro` then restores what "
        "its run cache has"
    )


def whole_text(file: Path) -> str:
    """The text of a ``dvc.lock`` between two writings, or one that has not changed for two seconds.

    The latter because a ``dvc push`` holds the lock for as long as it takes and writes nothing.

    Raises:
        FileNotFoundError: when there is no such file.
    """
    writer = tmp_folder(file.parent) / "lock"
    previous, since = b"", time.monotonic()
    while True:
        with shared(writer) as quiet:
            data = file.read_bytes()
        if quiet:
            return data.decode()
        if data != previous:
            previous, since = data, time.monotonic()
        elif data and time.monotonic() - since >= _SETTLED_SECONDS:
            return data.decode()
        time.sleep(_POLL_SECONDS)


def _schema_error(tree: Any) -> str | None:
    """What DVC would refuse, in DVC's words; None for a file that it accepts."""
    if not isinstance(tree, Mapping):
        return "expected a dictionary"
    if "schema" not in tree:
        return "required key not provided, in schema"
    if tree["schema"] != _SCHEMA:
        return "invalid schema version, in schema"
    stages = tree.get("stages", {})
    if not isinstance(stages, Mapping):
        return "expected a dictionary, in stages"
    errors = (_entry_error(entry, f"stages -> {name}") for name, entry in stages.items())
    return next((text for text in errors if text), None)


def _entry_error(entry: Any, location: str) -> str | None:
    if not isinstance(entry, Mapping):
        return f"expected a dictionary, in {location}"
    if not isinstance(entry.get("cmd"), str | list):
        return f"expected a str or a list, in {location} -> cmd"
    files = entry.get("params", {})
    if not isinstance(files, Mapping) or not all(isinstance(values, Mapping) for values in files.values()):
        return f"expected a dictionary, in {location} -> params"
    return _list_error(entry.get("deps", []), f"{location} -> deps") or _list_error(
        entry.get("outs", []), f"{location} -> outs"
    )


def _list_error(entries: Any, location: str) -> str | None:
    if not isinstance(entries, list):
        return f"expected a list, in {location}"
    for place, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("path"), str):
            return f"required key not provided, in {location} -> {place} -> path"
        if wrong := next((key for key in _MD5S if not isinstance(entry.get(key, ""), str)), None):
            return f"not a valid value, in {location} -> {place} -> {wrong}"
    return None
