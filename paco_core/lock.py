"""``dvc.yaml`` and ``dvc.lock`` read as YAML, and DVC's md5 of what lies on disk. DVC itself is not needed.

A *recipe* is what decides what a stage makes: the md5 of each input, source files included, and its slice
of the parameters. ``dvc.lock`` records it after a run; :func:`present_recipe` says what it is now.
"""

from __future__ import annotations

import configparser
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paco_core.file_locks import shared
from paco_core.files import DataError, digest, read_yaml

HASHED_BYTES = 2 << 30  # a stage that starts takes larger inputs at dvc.lock's word
LOCK_FILE, GRAPH_FILE = "dvc.lock", "dvc.yaml"
POLL_S, SETTLED_S = 0.05, 2.0


@dataclass(frozen=True)
class Recipe:
    """Inputs by md5 and parameters by file and dotted key."""

    deps: Mapping[str, str]
    params: Mapping[str, Mapping[str, Any]]

    @property
    def digest(self) -> str:
        """Equal for equal inputs and parameters, in whatever order they are written."""
        return digest({"deps": dict(self.deps), "params": {f: dict(v) for f, v in self.params.items()}}, 32)


@dataclass(frozen=True)
class Entry:
    """What ``dvc.lock`` records of the last run of one stage (``grids@0`` for an item)."""

    stage: str
    cmd: str
    recipe: Recipe
    outs: Mapping[str, str]


@dataclass(frozen=True)
class Lock:
    """``dvc.lock``, read once."""

    entries: Mapping[str, Entry] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Path) -> Lock:
        """The lock of a project; empty where nothing was run by DVC yet.

        Raises:
            DataError: when the file is malformed.
        """
        path = root / LOCK_FILE
        if not path.is_file():
            return cls()
        stages = read_yaml(path, _whole_text).get("stages") or {}
        return cls({name: _entry(name, tree) for name, tree in stages.items()})

    def maker(self, path: str) -> Entry | None:
        """The stage whose out is ``path`` or holds it."""
        for entry in self.entries.values():
            if any(path == out or path.startswith(f"{out}/") for out in entry.outs):
                return entry
        return None

    def makers(self, path: str) -> list[Entry]:
        """The stages whose outs are, hold or lie below ``path`` (``data/grids`` is made by all shards)."""
        return [
            entry
            for entry in self.entries.values()
            if any(path == out or path.startswith(f"{out}/") or out.startswith(f"{path}/") for out in entry.outs)
        ]

    def md5_of(self, path: str) -> str | None:
        """The recorded md5 of an out."""
        entry = self.maker(path)
        return entry.outs.get(path) if entry else None


def _whole_text(file: Path) -> str:
    """The text of ``dvc.lock`` between two writings, or one that has not changed for two seconds.

    DVC cuts the file and writes it anew, which takes up to half a second: another stage's run may be at it just now,
    and a part of the file is often valid YAML, too. DVC holds its own lock meanwhile; a ``dvc push`` holds it for as
    long as it takes, and writes nothing.
    """
    writer = file.parent / ".dvc" / "tmp" / "lock"
    seen, since = b"", time.monotonic()
    while True:
        with shared(writer) as quiet:
            data = file.read_bytes()
        if quiet:
            return data.decode()
        if data != seen:
            seen, since = data, time.monotonic()
        elif data and time.monotonic() - since >= SETTLED_S:
            return data.decode()
        time.sleep(POLL_S)


def _entry(name: str, tree: Mapping[str, Any]) -> Entry:
    def md5s(key: str) -> dict[str, str]:
        return {str(e["path"]): str(e.get("md5") or "") for e in tree.get(key) or []}

    params = {str(file): dict(values or {}) for file, values in (tree.get("params") or {}).items()}
    return Entry(name, str(tree.get("cmd", "")), Recipe(md5s("deps"), params), md5s("outs"))


# --- md5s of what lies on disk ---------------------------------------------------------------------------


def file_md5(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "md5").hexdigest()


class Disk:
    """Files below the project as DVC sees them: ``.dvcignore`` at the root is heeded."""

    def __init__(self, root: Path) -> None:
        from pathspec import PathSpec

        self.root = root
        ignore = root / ".dvcignore"
        lines = ignore.read_text().splitlines() if ignore.is_file() else []
        self._ignored = PathSpec.from_lines("gitwildmatch", [".git", ".hg", ".dvc/", *lines])

    def files(self, path: str) -> Iterator[str]:
        """Paths of all files below a folder, relative to it."""
        base = self.root / path
        for parent, folders, names in os.walk(base):
            inside = Path(parent).relative_to(self.root).as_posix()
            folders[:] = [f for f in folders if not self._ignored.match_file(f"{inside}/{f}/")]
            for name in names:
                if not self._ignored.match_file(f"{inside}/{name}"):
                    yield (Path(parent) / name).relative_to(base).as_posix()

    def listing(self, path: str) -> dict[str, str]:
        """Relative path -> md5 of every file of a folder."""
        return {name: file_md5(self.root / path / name) for name in sorted(self.files(path))}

    def size(self, path: str) -> int:
        full = self.root / path
        return sum((full / f).stat().st_size for f in self.files(path)) if full.is_dir() else full.stat().st_size

    def md5(self, path: str) -> str | None:
        """The md5 that DVC gives a file or folder, None when there is nothing."""
        full = self.root / path
        if full.is_dir():
            return listing_md5(self.listing(path))
        return file_md5(full) if full.is_file() else None


def listing_md5(files: Mapping[str, str]) -> str:
    entries = [{"md5": files[name], "relpath": name} for name in sorted(files)]
    return hashlib.md5(json.dumps(entries, sort_keys=True).encode(), usedforsecurity=False).hexdigest() + ".dir"


def cache_folder(root: Path) -> Path:
    """Where DVC keeps the bytes of every version."""
    folder = root / ".dvc" / "cache"
    for name in ("config", "config.local"):
        settings = configparser.ConfigParser(interpolation=None)
        settings.read(root / ".dvc" / name)
        if chosen := settings.get("cache", "dir", fallback=None):
            folder = root / ".dvc" / chosen
    return folder / "files" / "md5"


def cached(root: Path, md5: str) -> Path:
    """Where DVC's cache holds an object."""
    return cache_folder(root) / md5[:2] / md5[2:]


def cached_listing(root: Path, md5: str) -> dict[str, str] | None:
    """Relative path -> md5 of the files of a recorded folder, None when the cache does not know it."""
    path = cached(root, md5)
    if not path.is_file():
        return None
    return {str(e["relpath"]): str(e["md5"]) for e in json.loads(path.read_text())}


def restore(root: Path, md5: str, target: Path) -> None:
    """Lay a recorded version of a folder out from DVC's cache, as links: read it, do not write to it.

    Raises:
        DataError: when the cache lacks it.
    """
    from paco_core.files import atomic

    listing = cached_listing(root, md5)
    lacking = [name for name, part in (listing or {}).items() if not cached(root, part).is_file()]
    if listing is None or lacking:
        raise DataError(
            f"DVC's cache does not hold version {md5} ({lacking[0] if lacking else 'its listing'} is missing); "
            "fetch it with `dvc fetch --all-commits`"
        )
    with atomic(target) as part_path:
        for name, part in listing.items():
            place = part_path / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(cached(root, part).resolve())


# --- the present -----------------------------------------------------------------------------------------


def stage_definition(root: Path, label: str) -> Mapping[str, Any] | None:
    """The entry of ``dvc.yaml`` that a label (``grids@0``) belongs to, None where there is none."""
    if not (root / GRAPH_FILE).is_file():
        return None
    found = (read_yaml(root / GRAPH_FILE).get("stages") or {}).get(label.split("@", maxsplit=1)[0])
    return found if isinstance(found, Mapping) else None


def present_params(root: Path, wanted: Mapping[str, list[str]]) -> dict[str, dict[str, Any]]:
    """The present values of dotted keys by file; absent keys are absent."""
    found: dict[str, dict[str, Any]] = {}
    for file, keys in wanted.items():
        tree = read_yaml(root / file)
        values = {key: _lookup(tree, key) for key in keys}
        found[file] = {key: value for key, value in values.items() if value is not _MISSING}
    return found


_MISSING: Any = object()


def _lookup(tree: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        if not isinstance(tree, Mapping) or part not in tree:
            return _MISSING
        tree = tree[part]
    return tree


def present_recipe(root: Path, label: str) -> Recipe | None:
    """What a stage that starts now reads; None where ``dvc.yaml`` does not know it or an input is missing.

    Inputs of more than :data:`HASHED_BYTES` are taken at the word of ``dvc.lock``.
    """
    stage = stage_definition(root, label)
    if stage is None:
        return None
    disk, names = Disk(root), [str(dep) for dep in stage.get("deps") or []]
    if not all((root / dep).exists() for dep in names):
        return None
    large = {dep for dep in names if disk.size(dep) > HASHED_BYTES}
    lock = Lock.read(root) if large else None  # a large file by itself: read only where it is needed
    deps = {dep: str((lock.md5_of(dep) if lock and dep in large else None) or disk.md5(dep)) for dep in names}
    wanted: dict[str, list[str]] = {}
    for entry in stage.get("params") or []:
        parts = entry.items() if isinstance(entry, Mapping) else [("params.yaml", [entry])]
        for file, keys in parts:
            wanted.setdefault(str(file), []).extend(map(str, keys))
    return Recipe(deps, present_params(root, wanted))
