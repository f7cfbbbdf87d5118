"""What a stage is made of besides the data of other stages: code, libraries, files that parameters name, defaults.

The stage ``code`` writes it down, one file a stage, on which DVC has the stage depend: ``data/code/grids.json``, and
for the items of a stage whose parameters differ ``data/code/policies-flux_t2is.json``. Nothing of it is typed by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from dvc_project.cache import Cache
from dvc_project.hashing import Workspace
from dvc_project.md5s import file_md5
from dvc_project.paths import overlap
from dvc_project.project import Stage, stages_of
from paco_core.config.graph_keys import refuse_other_version
from paco_core.config.params import PARAMS_FILE, Params
from paco_core.config.references import references
from paco_core.config.registered import FUNCTION
from paco_core.io.atomic import atomic
from paco_core.io.files import digest
from paco_core.io.paths import in_round
from paco_core.io.project import owner_root
from paco_core.runtime.code.closure import Code

FOLDER = Path("data/code")
CACHE = Path(".paco") / "code.json"
_MISSING = object()


@dataclass(frozen=True)
class StageCode:
    """``modules`` and ``files`` by path below the root with a digest of their content; ``libraries`` by version.

    ``defaults`` are parameters that the stage declares and ``params.yaml`` leaves out, by dotted key.
    """

    modules: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Of code and libraries: what a checkpoint was computed with. Files and parameters it names itself."""
        return digest([dict(self.modules), dict(self.libraries)], 16)

    @property
    def text(self) -> str:
        """The file that the stage ``code`` writes."""
        return json.dumps(asdict(self), indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def from_text(cls, text: str) -> StageCode:
        """What :attr:`text` says; empty for a text that is none."""
        try:
            tree = json.loads(text)
            return cls(**{name: dict(tree[name]) for name in ("modules", "libraries", "files", "defaults")})
        except (ValueError, KeyError, TypeError):
            return cls()

    def changes(self, before: StageCode) -> list[str]:
        """What is different now, a short sentence each: ``paco_core/grpo/losses.py changed``."""
        found = []
        for name in ("modules", "libraries", "files", "defaults"):
            now, then = getattr(self, name), getattr(before, name)
            for key in sorted({*now, *then}, key=str):
                if key not in then:
                    found.append(f"{key} is new")
                elif key not in now:
                    found.append(f"{key} is gone")
                elif now[key] != then[key]:
                    shown = f" ({then[key]} to {now[key]})" if name in ("libraries", "defaults") else ""
                    found.append(f"{key} changed{shown}")
        return found


class StageCodes:
    """The present code of the stages of one project."""

    def __init__(self, root: Path, params: Params, raw: Mapping[str, Any]) -> None:
        """``params`` as validated, ``raw`` as ``params.yaml`` spells them."""
        self.root, self.params, self.raw = root, params, raw
        self._in_file = params.model_dump(mode="json")
        self.code = Code(root, owner_root(root) / CACHE)
        self.graph = stages_of(root)
        self._workspace = Workspace(root)
        self._made = {out for stage in self.graph.values() for out in (*stage.data, *stage.figures)}
        self._inputs = {found.key: found.value for found in references(params)}

    @classmethod
    def present(cls, root: Path) -> StageCodes:
        """Of the project as it lies on disk.

        Raises:
            ParamsError: when ``params.yaml`` is invalid.
            DataError: when ``dvc.yaml`` is.
        """
        from paco_core.config.params import load, read_text, tree_of

        path = root / PARAMS_FILE
        return cls(root, load(path), tree_of(read_text(path), path))

    def files(self) -> dict[str, StageCode]:
        """Code file below the root -> what it says, for each that a stage of ``dvc.yaml`` depends on."""
        return {file: self._of(stages[0].group, stages) for file, stages in self._readers.items()}

    def of(self, name: str, item: str | None) -> StageCode:
        """Of one stage, or one item; by its code alone where ``dvc.yaml`` does not know it."""
        for stages in self._readers.values():
            if any((stage.group, stage.item) == (name, item) for stage in stages):
                return self._of(name, stages)
        return self._of(name, [])

    @cached_property
    def _readers(self) -> dict[str, list[Stage]]:
        """The stages that depend on each code file; items of a stage may share one."""
        readers: dict[str, list[Stage]] = {}
        for stage in self.graph.values():
            for dep in stage.deps:
                if is_code(dep):
                    readers.setdefault(dep, []).append(stage)
        return readers

    def _of(self, name: str, stages: list[Stage]) -> StageCode:
        keys = sorted({key for stage in stages for key in stage.params.get(PARAMS_FILE, ())})
        slices = {key: _lookup(self._in_file, key) for key in keys}
        words = {word for value in slices.values() for word in _words(value)}
        closure = self.code.closure([f"paco_core.stages.{in_round(name) or name}", *self._functions(words)], words)
        inputs = {path for key, path in self._inputs.items() if any(key == k or key.startswith(f"{k}.") for k in keys)}
        return StageCode(
            closure.modules,
            closure.libraries,
            {path: md5 for path in sorted(inputs) if (md5 := self._md5(path))},
            {key: value for k in keys for key, value in _unspelled(slices[k], _lookup(self.raw, k), k)},
        )

    def _functions(self, words: set[str]) -> Iterator[str]:
        """Modules of functions of the user's own."""
        for word in sorted(words):
            module = word.partition(":")[0]
            if FUNCTION.fullmatch(word) and self.code.locate(module):
                yield module

    def _md5(self, path: str) -> str | None:
        """DVC's md5 of what a parameter names; None for a hub's model, and for what a stage makes: that is a dep."""
        if any(overlap(Path(path).as_posix(), out) for out in self._made):
            return None
        return self._workspace.md5(path)


def _lookup(tree: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        tree = tree.get(part, _MISSING) if isinstance(tree, Mapping) else _MISSING
        if tree is _MISSING:
            return _MISSING
    return tree


def _words(value: Any) -> Iterator[str]:
    """Every text in a parameter's value, names of keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield str(key)
            yield from _words(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _words(part)


def _unspelled(value: Any, spelled: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Values that the file leaves to the defaults, by dotted key."""
    if value is _MISSING:
        return
    if isinstance(value, Mapping) and isinstance(spelled, Mapping):
        for name, part in value.items():
            yield from _unspelled(part, spelled.get(name, _MISSING), f"{key}.{name}")
    elif spelled is _MISSING and value is not None:
        yield key, value


def is_code(path: str) -> bool:
    """Whether a dep is the file by which a stage depends on its code."""
    return Path(path).parent == FOLDER


def digest_of(root: Path, *modules: str) -> str:
    """Digest of what modules run, with libraries; see :meth:`Code.closure`."""
    closure = Code(root, owner_root(root) / CACHE).closure(modules)
    return StageCode(closure.modules, closure.libraries).digest


def library_digest(module: str, words: Set[str], cache: Path) -> str:
    """Digest of what a module of this library runs, without anything of a project's; ``cache`` is a folder."""
    closure = Code(cache, cache / CACHE.name).closure([module], words)
    return StageCode(closure.modules, closure.libraries).digest


def recorded(root: Path, path: str, md5: str) -> StageCode:
    """What a version of a code file says; empty where neither the workspace nor DVC's cache holds that version."""
    for place in (root / path, Cache(root).path(md5)):
        if place.is_file() and file_md5(place) == md5:
            return StageCode.from_text(place.read_text(encoding="utf-8"))
    return StageCode()


def write(root: Path) -> None:
    """What the stage ``code`` does. It runs first, so it also finds what DVC would only find at a later stage.

    Raises:
        ParamsError, DataError: see :meth:`StageCodes.present`; also when ``dvc.yaml`` and ``params.yaml`` are of
            different versions.
    """
    refuse_other_version(root)
    with atomic(root / FOLDER, replace=True) as part:
        part.mkdir()
        for path, code in StageCodes.present(root).files().items():
            (part / Path(path).name).write_text(code.text, encoding="utf-8")
