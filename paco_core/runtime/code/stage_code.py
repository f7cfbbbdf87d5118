"""What a stage is made of besides the data of other stages: code, libraries, files that parameters name, defaults.

The stage ``code`` writes it down, one file a stage, on which DVC has the stage depend: ``data/code/grids.json``, and
for the items of a stage whose parameters differ ``data/code/policies-flux_t2is.json``. Nothing of it is typed by hand.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from dvc_project.cache import Cache
from dvc_project.derived import Derived
from dvc_project.hashing import Workspace
from dvc_project.md5s import file_md5
from dvc_project.paths import Overlaps
from dvc_project.project import Stage, stages_of
from paco_core.config.graph_keys import refuse_other_version
from paco_core.config.params import PARAMS_FILE, Params, ParamsError
from paco_core.config.references import Reference, named_files, references
from paco_core.config.registered import FUNCTION
from paco_core.config.resolved import resolved_values, unspelled
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError, digest, md5_of
from paco_core.io.paths import in_round
from paco_core.io.project import owner_root
from paco_core.runtime.code.closure import Code
from paco_core.runtime.rounds import params_of

FOLDER = Path("data/code")
CACHE = Path(".paco") / "code.json"


@dataclass(frozen=True)
class StageCode:
    """``modules`` and ``files`` by path below the root with a digest of their content; ``libraries`` by version.

    ``resolved`` are values of declared parameters that ``params.yaml`` does not spell, by dotted key
    (:mod:`paco_core.config.resolved`).
    """

    modules: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    resolved: Mapping[str, Any] = field(default_factory=dict)

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
            return cls.from_tree(json.loads(text))
        except (ValueError, KeyError, TypeError):
            return cls()

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> StageCode:
        """A stage's code as JSON has it; earlier versions wrote ``resolved`` as ``defaults``.

        Raises:
            KeyError, TypeError: when it is not the code of a stage.
        """
        resolved = tree["resolved"] if "resolved" in tree else tree["defaults"]
        return cls(dict(tree["modules"]), dict(tree["libraries"]), dict(tree["files"]), dict(resolved))

    def changes(self, before: StageCode) -> list[str]:
        """What is different now, a short sentence each: ``paco_core/grpo/losses.py changed``."""
        found = []
        for name in ("modules", "libraries", "files", "resolved"):
            now, then = getattr(self, name), getattr(before, name)
            for key in sorted({*now, *then}, key=str):
                if key not in then:
                    found.append(f"{key} is new")
                elif key not in now:
                    found.append(f"{key} is gone")
                elif now[key] != then[key]:
                    shown = f" ({then[key]} to {now[key]})" if name in ("libraries", "resolved") else ""
                    found.append(f"{key} changed{shown}")
        return found


class StageCodes:
    """The present code of the stages of one project."""

    def __init__(self, root: Path, params: Params, raw: Mapping[str, Any]) -> None:
        """``params`` as validated, ``raw`` as ``params.yaml`` spells them."""
        self.root, self.params, self.raw = root, params, raw
        self.code = Code(root, owner_root(root) / CACHE)
        self.graph = stages_of(root)
        self._workspace = Workspace(root)
        self._made = Overlaps((out.path, out.path) for stage in self.graph.values() for out in stage.outs)

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
        variants = self._variants(stages)
        values = {item: resolved_values(params, keys) for item, params in variants.items()}
        words = {word for tree in values.values() for word in _words(tree)}
        closure = self.code.closure([f"paco_core.stages.{in_round(name) or name}", *self._functions(words)], words)
        return StageCode(
            closure.modules,
            closure.libraries,
            {path: md5 for path in sorted(self._inputs(variants.values(), keys)) if (md5 := self._md5(path))},
            {
                key if len(variants) == 1 else f"{item}: {key}": value
                for item, tree in values.items()
                for key, value in unspelled(tree, self.raw).items()
            },
        )

    def _variants(self, stages: list[Stage]) -> dict[str | None, Params]:
        """The parameters of stages by item; those of items that share them once."""
        params = {stage.item: params_of(self.params, stage.group, stage.item) for stage in stages}
        return params if any(found is not self.params for found in params.values()) else {None: self.params}

    def _inputs(self, variants: Iterable[Params], keys: list[str]) -> set[str]:
        """Models, files and folders that parameters below these keys name, and files that those files name."""
        declared = {
            (found.value, found.names.kind)
            for params in variants
            for found in (self._named if params is self.params else references(params))
            if any(found.key == key or found.key.startswith(f"{key}.") for key in keys)
        }
        inside = (file for path, kind in declared if kind == "file" for file in named_files(self.root / path))
        return {path for path, _ in declared} | {os.path.relpath(file, self.root) for file in inside}

    @cached_property
    def _named(self) -> list[Reference]:
        """What the parameters name, which most stages share."""
        return list(references(self.params))

    def _functions(self, words: set[str]) -> Iterator[str]:
        """Modules of functions of the user's own."""
        for word in sorted(words):
            module = word.partition(":")[0]
            if FUNCTION.fullmatch(word) and self.code.locate(module):
                yield module

    def _md5(self, path: str) -> str | None:
        """DVC's md5 of what a parameter names; None for a hub's model, and for what a stage makes: that is a dep."""
        if self._made.of([Path(path).as_posix()]):
            return None
        return self._workspace.md5(path)


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


def present_code(root: Path) -> Derived:
    """The code files of all stages; none where ``params.yaml`` or a source file is invalid, which a run reports."""
    try:
        return valid_code(root)
    except (DataError, ParamsError):
        return Derived()


def valid_code(root: Path) -> Derived:
    """The code files of all stages.

    Raises:
        ParamsError: when ``params.yaml`` is invalid.
        DataError: when ``dvc.yaml`` or a source file is.
    """
    files = StageCodes.present(root).files()

    @cache  # the items of a stage have one recorded version
    def changes(path: str, md5: str) -> list[str]:
        return files[path].changes(recorded(root, path, md5))

    return Derived({path: md5_of(code.text.encode()) for path, code in files.items()}, changes)
