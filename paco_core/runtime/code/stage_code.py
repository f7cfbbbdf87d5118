"""The code of a stage: its modules, libraries, files that parameters name, and default values of parameters.

The stage ``code`` writes one file per stage, for example ``data/code/grids.json``, on which the stage depends in DVC.
If the parameters of items differ, each item has a file, for example ``data/code/policies-flux_t2is.json``.
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
from dvc_project.project import ResolvedStage, stages_of
from paco_core.config.graph_keys import validate_version
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
    """The code of a stage.

    Attributes:
        modules: path below the root -> digest of the code.
        libraries: distribution -> version.
        files: path below the root -> md5 of a file or folder that a parameter names.
        resolved: dotted key -> value, for declared parameters that ``params.yaml`` does not contain
            (:mod:`paco_core.config.resolved`).
    """

    modules: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    resolved: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Digest of modules and libraries, for checkpoints. A checkpoint adds files and parameters itself."""
        return digest([dict(self.modules), dict(self.libraries)], 16)

    @property
    def text(self) -> str:
        """The content of the file that the stage ``code`` writes."""
        return json.dumps(asdict(self), indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def from_text(cls, text: str) -> StageCode:
        """Parse :attr:`text`; empty for any other text."""
        try:
            return cls.from_tree(json.loads(text))
        except (ValueError, KeyError, TypeError):
            return cls()

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> StageCode:
        """Parse the JSON of :attr:`text`. Earlier versions wrote ``resolved`` as ``defaults``.

        Raises:
            KeyError, TypeError: when the tree is not the code of a stage.
        """
        resolved = tree["resolved"] if "resolved" in tree else tree["defaults"]
        return cls(dict(tree["modules"]), dict(tree["libraries"]), dict(tree["files"]), dict(resolved))

    def changes(self, before: StageCode) -> list[str]:
        """The differences, one short sentence each, for example ``paco_core/grpo/losses.py changed``."""
        changes = []
        for name in ("modules", "libraries", "files", "resolved"):
            now, then = getattr(self, name), getattr(before, name)
            for key in sorted({*now, *then}, key=str):
                if key not in then:
                    changes.append(f"{key} is used now")
                elif key not in now:
                    changes.append(f"{key} is no longer used")
                elif now[key] != then[key]:
                    values = f" ({then[key]} to {now[key]})" if name in ("libraries", "resolved") else ""
                    changes.append(f"{key} changed{values}")
        return changes


class StageCodes:
    """The present code of the stages of one project.

    Args:
        params: validated parameters.
        raw: the content of ``params.yaml``.
    """

    def __init__(self, root: Path, params: Params, raw: Mapping[str, Any]) -> None:
        self.root, self.params, self.raw = root, params, raw
        self.code = Code(root, owner_root(root) / CACHE)
        self.graph = stages_of(root)
        self._workspace = Workspace(root)
        self._outs = Overlaps((out.path, out.path) for stage in self.graph.values() for out in stage.outs)

    @classmethod
    def present(cls, root: Path) -> StageCodes:
        """The code of a project, as it is on disk.

        Raises:
            ParamsError: when ``params.yaml`` is invalid.
            DataError: when ``dvc.yaml`` is.
        """
        from paco_core.config.params import load, read_text, tree_of

        path = root / PARAMS_FILE
        return cls(root, load(path), tree_of(read_text(path), path))

    def files(self) -> dict[str, StageCode]:
        """Code file below the root -> its content, for each code file that a stage of ``dvc.yaml`` depends on."""
        return {file: self._of(stages[0].group, stages) for file, stages in self._readers.items()}

    def of(self, name: str, item: str | None) -> StageCode:
        """The code of one stage or item; without parameters if ``dvc.yaml`` does not declare it."""
        for stages in self._readers.values():
            if any((stage.group, stage.item) == (name, item) for stage in stages):
                return self._of(name, stages)
        return self._of(name, [])

    @cached_property
    def _readers(self) -> dict[str, list[ResolvedStage]]:
        """The stages that depend on each code file. Items of a stage may share a file."""
        readers: dict[str, list[ResolvedStage]] = {}
        for stage in self.graph.values():
            for dep in stage.deps:
                if is_code(dep):
                    readers.setdefault(dep, []).append(stage)
        return readers

    def _of(self, name: str, stages: list[ResolvedStage]) -> StageCode:
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

    def _variants(self, stages: list[ResolvedStage]) -> dict[str | None, Params]:
        """The parameters of stages, by item; one entry if all items have the same parameters."""
        params = {stage.item: params_of(self.params, stage.group, stage.item) for stage in stages}
        return params if any(variant is not self.params for variant in params.values()) else {None: self.params}

    def _inputs(self, variants: Iterable[Params], keys: list[str]) -> set[str]:
        """Models, files and folders that the parameters below ``keys`` name, and files that those files name."""
        declared = {
            (reference.value, reference.names.kind)
            for params in variants
            for reference in (self._references if params is self.params else references(params))
            if any(reference.key == key or reference.key.startswith(f"{key}.") for key in keys)
        }
        inside = (file for path, kind in declared if kind == "file" for file in named_files(self.root / path))
        return {path for path, _ in declared} | {os.path.relpath(file, self.root) for file in inside}

    @cached_property
    def _references(self) -> list[Reference]:
        """The references of the parameters; most stages have the same parameters."""
        return list(references(self.params))

    def _functions(self, words: set[str]) -> Iterator[str]:
        """Modules of custom functions, which parameters name as ``module:function``."""
        for word in sorted(words):
            module = word.partition(":")[0]
            if FUNCTION.fullmatch(word) and self.code.locate(module):
                yield module

    def _md5(self, path: str) -> str | None:
        """DVC's md5 of a file or folder; None for a model of a hub, and for an out of a stage, which is a dep."""
        if self._outs.of([Path(path).as_posix()]):
            return None
        return self._workspace.md5(path)


def _words(value: Any) -> Iterator[str]:
    """All strings in the value of a parameter, including the names of keys."""
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
    """Whether a dep is a code file, by which a stage depends on its code."""
    return Path(path).parent == FOLDER


def code_digest(root: Path, *modules: str) -> str:
    """Digest of the modules and libraries that ``modules`` run; see :meth:`Code.closure`."""
    closure = Code(root, owner_root(root) / CACHE).closure(modules)
    return StageCode(closure.modules, closure.libraries).digest


def library_digest(module: str, words: Set[str], cache: Path) -> str:
    """Digest of the code that a module of this library runs, without code of a project.

    Args:
        words: see :meth:`Code.closure`.
        cache: a folder for the :class:`SourceCache`.
    """
    closure = Code(cache, cache / CACHE.name).closure([module], words)
    return StageCode(closure.modules, closure.libraries).digest


def read_recorded_code(root: Path, path: str, md5: str) -> StageCode:
    """Read a version of a code file from the workspace or DVC's cache; empty if neither contains that version."""
    for place in (root / path, Cache(root).path(md5)):
        if place.is_file() and file_md5(place) == md5:
            return StageCode.from_text(place.read_text(encoding="utf-8"))
    return StageCode()


def write_stage_code(root: Path) -> None:
    """Write the code files of all stages: the stage ``code``. It runs first and so reports invalid files early.

    Raises:
        ParamsError, DataError: see :meth:`StageCodes.present`; also when ``dvc.yaml`` and ``params.yaml`` are of
            different versions.
    """
    validate_version(root)
    with atomic(root / FOLDER, replace=True) as part:
        part.mkdir()
        for path, code in StageCodes.present(root).files().items():
            (part / Path(path).name).write_text(code.text, encoding="utf-8")


def present_code(root: Path) -> Derived:
    """The code files of all stages; none if ``params.yaml`` or a source file is invalid, which a run reports."""
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
        return files[path].changes(read_recorded_code(root, path, md5))

    return Derived({path: md5_of(code.text.encode()) for path, code in files.items()}, changes)
