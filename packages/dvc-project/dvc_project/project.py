"""A DVC project read from its files: stages, their edges, and what ``dvc.lock`` records of them.

``dvc`` itself is never imported: a code location loads in a fraction of a second and needs no DVC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from dvc_project.artifacts import Artifact, artifacts
from dvc_project.circles import without_circles
from dvc_project.derived import Derived
from dvc_project.errors import DvcProjectError
from dvc_project.hashing import Workspace, hash_json
from dvc_project.items import Item, foreach, matrix
from dvc_project.lockfile import Entry, Lock
from dvc_project.paths import Overlaps, PathResolver, overlap
from dvc_project.reading import read_data
from dvc_project.repository import parsing_style, repository_of
from dvc_project.templating import PARAMS_FILE, Variables
from dvc_project.tracked import Tracked, tracked
from dvc_project.yaml import select

GRAPH_FILE = "dvc.yaml"
_STAGE_KEYS = {
    "cmd", "wdir", "deps", "params", "vars", "frozen", "meta", "desc", "always_changed", "outs", "metrics",
    "plots", "matrix",
}  # fmt: skip


@dataclass(frozen=True)
class Out:
    """A path that a stage writes; ``kind`` is outs, metrics or plots."""

    path: str
    kind: str
    cache: bool = True
    persist: bool = False


@dataclass(frozen=True)
class ResolvedStage:
    """One stage, resolved. Paths are relative to the project root."""

    name: str
    group: str
    item: str | None
    coordinates: Mapping[str, str]
    cmd: str | list[str]
    template: Any
    wdir: str
    deps: tuple[str, ...]
    params: Mapping[str, tuple[str, ...]]
    outs: tuple[Out, ...]
    desc: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    frozen: bool = False
    always_changed: bool = False
    spellings: Mapping[str, str] = field(default_factory=dict)  # path -> how dvc.yaml writes it

    @property
    def data(self) -> tuple[str, ...]:
        """Paths of what it makes, without metrics and plots, which may hold seconds."""
        return tuple(out.path for out in self.outs if out.kind == "outs")

    @property
    def figures(self) -> tuple[str, ...]:
        """Paths of its metrics and plots."""
        return tuple(out.path for out in self.outs if out.kind != "outs")

    @property
    def dagster(self) -> Mapping[str, Any]:
        """``meta.dagster``: the group of its asset, its pool, and whether it is an asset at all."""
        return self.meta.get("dagster") or {}


@dataclass(frozen=True)
class Group:
    """An entry under ``stages``: one plain stage, or the stages of a ``matrix`` or ``foreach``."""

    name: str
    stages: tuple[ResolvedStage, ...]
    dimensions: Mapping[str, tuple[str, ...]]
    desc: str | None
    meta: Mapping[str, Any]


def _names(entries: Iterable[Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """``[path, {path: {flag: value}}]`` as pairs of path and flags."""
    for entry in entries:
        if isinstance(entry, Mapping):
            for path, flags in entry.items():
                yield str(path), flags if isinstance(flags, Mapping) else {}
        else:
            yield str(entry), {}


def _is_asset(group: Group) -> bool:
    return bool((group.meta.get("dagster") or {}).get("asset", True))


class DvcProject:
    """The project in ``root``: an immutable reading of ``dvc.yaml`` and the parameter files it uses.

    ``.dvc`` may lie further up (``repository``). Each call reads ``dvc.lock`` and the files of the workspace again. To
    see an edited ``dvc.yaml`` or ``params.yaml``, make a new project (:meth:`reload`).

    Args:
        derive: what the project's bookkeeping stages would write now (:mod:`dvc_project.derived`).

    Raises:
        DvcProjectError: when a file is malformed, a variable undefined, or the graph has a cycle.
    """

    def __init__(self, root: Path | str, derive: Callable[[Path], Derived] | None = None) -> None:
        self.root = Path(root).resolve()
        self.repository = repository_of(self.root)
        self.path = self.root / GRAPH_FILE
        self._tree = read_data(self.path)
        self.workspace = Workspace(self.root)
        self._derive = derive
        self._read: dict[str, dict[str, Any]] = {}
        self.variables = self._variables()
        self.groups: dict[str, Group] = {name: self._group(name, d) for name, d in self._definitions.items()}
        self.stages: dict[str, ResolvedStage] = {s.name: s for g in self.groups.values() for s in g.stages}

    def reload(self) -> DvcProject:
        return DvcProject(self.root, self._derive)

    # --- dvc.yaml ------------------------------------------------------------------------------------

    @property
    def _definitions(self) -> dict[str, Any]:
        stages = self._tree.get("stages") or {}
        if not isinstance(stages, Mapping):
            raise DvcProjectError(f"{self.path}: stages: expected a mapping, got {type(stages).__name__}")
        return dict(stages)

    def _variables(self) -> Variables:
        """What ``${...}`` means at the top level."""
        location = f"{self.path}: vars"
        scope = Variables(style=parsing_style(self.root))
        if (self.root / PARAMS_FILE).is_file():
            scope = scope.including([PARAMS_FILE], self.root, location)
        return scope.including(self._tree.get("vars") or [], self.root, location)

    def declared(self, section: str) -> list[Any]:
        """A top-level section: ``metrics``, ``plots`` or ``params``."""
        return list(self.variables.iterable(self._tree.get(section) or [], f"{self.path}: {section}"))

    @cached_property
    def datasets(self) -> dict[str, Mapping[str, Any]]:
        """The top-level section ``datasets`` by name; a dep on one is ``ds://NAME``."""
        return {str(d["name"]): d for d in self.declared("datasets") if isinstance(d, Mapping) and "name" in d}

    @cached_property
    def artifacts(self) -> tuple[Artifact, ...]:
        """The top-level section ``artifacts``.

        Raises:
            DvcProjectError: when an entry has no path.
        """
        location = f"{self.path}: artifacts"
        return artifacts(self.variables.iterable(self._tree.get("artifacts") or {}, location), location)

    @cached_property
    def tracked(self) -> tuple[Tracked, ...]:
        """What ``.dvc`` files track: of those in the project's folder all, of others what a stage reads."""
        read = {dep for stage in self.stages.values() for dep in stage.deps}
        outs = tracked(self.workspace, self.repository)
        return tuple(
            out for out in outs if not out.file.startswith("../") or any(overlap(out.path, dep) for dep in read)
        )

    def _group(self, name: str, definition: Any) -> Group:
        location = f"{self.path}: stages.{name}"
        if not isinstance(definition, Mapping):
            raise DvcProjectError(f"{location}: expected a mapping, got {type(definition).__name__}")
        looped = bool({"foreach", "do"} & set(definition))
        template = definition.get("do") if looped else definition
        if not isinstance(template, Mapping) or (looped and set(definition) != {"foreach", "do"}):
            raise DvcProjectError(f"{location}: expected `foreach` and `do`, a mapping, and no other key")
        if unknown := set(template) - _STAGE_KEYS:
            raise DvcProjectError(f"{location}: unknown key {min(map(str, unknown))!r}")
        if "cmd" not in template:
            raise DvcProjectError(f"{location}: cmd is missing")
        dimensions: dict[str, tuple[str, ...]] = {}
        stages: list[ResolvedStage] = []
        if looped:
            loop_values = definition["foreach"]
            items = foreach(self.variables.iterable(loop_values, f"{location}.foreach"), loop_values, location)
            dimensions = {"item": tuple(item.key for item in items)}
        elif "matrix" in definition:
            axes = self.variables.iterable(definition["matrix"], f"{location}.matrix")
            dimensions, items = matrix(axes, definition["matrix"], location)
        else:
            items = [Item(None, {}, {})]
        body = {k: v for k, v in template.items() if k != "matrix"}
        stages = [self._stage(name, item, body) for item in items]
        first = stages[0] if stages else None
        desc = first.desc if first and not dimensions else body.get("desc")
        meta = first.meta if first else {}
        return Group(name, tuple(stages), dimensions, desc, meta)

    def _stage(self, group: str, item: Item, body: Mapping[str, Any]) -> ResolvedStage:
        name = group if item.key is None else f"{group}@{item.key}"
        location = f"{self.path}: stages.{name}"
        scope = self.variables.shadowed(item.names) if item.names else self.variables
        folder = self.root / str(scope.resolve(body.get("wdir", "."), f"{location}.wdir"))
        if body.get("vars"):
            scope = scope.including(body["vars"], folder, f"{location}.vars")
        resolved = {k: scope.resolve(v, f"{location}.{k}", k == "cmd") for k, v in body.items() if k != "vars"}
        for key in ("deps", "params", "outs", "metrics", "plots"):
            if not isinstance(resolved.get(key) or [], list):
                raise DvcProjectError(f"{location}.{key}: expected a list, got {type(resolved[key]).__name__}")
        wdir = self._path_resolver()(str(resolved.get("wdir", ".")))
        place = self._path_resolver(wdir)
        kinds = ("outs", "metrics", "plots")
        written = [(kind, path, flags) for kind in kinds for path, flags in _names(resolved.get(kind) or [])]
        outs = [
            Out(place(path), kind, bool(flags.get("cache", True)), bool(flags.get("persist", False)))
            for kind, path, flags in written
        ]
        deps, params = [str(dep) for dep in resolved.get("deps") or []], _params(resolved.get("params") or [])
        return ResolvedStage(
            name, group, item.key, item.coordinates, resolved["cmd"], body["cmd"], wdir,
            tuple(map(place, deps)), {place(file): keys for file, keys in params.items()},
            tuple(outs), resolved.get("desc"), resolved.get("meta") or {},
            bool(resolved.get("frozen")), bool(resolved.get("always_changed")),
            {place(path): place.spelling(path) for path in [*deps, *params, *(path for _, path, _ in written)]},
        )  # fmt: skip

    def _path_resolver(self, wdir: str = ".") -> PathResolver:
        return PathResolver(self.root, self.repository, wdir)

    # --- bookkeeping ---------------------------------------------------------------------------------

    @cached_property
    def derived(self) -> Derived:
        return self._derive(self.root) if self._derive else Derived()

    @property
    def assets(self) -> list[str]:
        """Entries under ``stages`` that are data, and not bookkeeping; a ``foreach`` without items is none."""
        return [name for name, group in self.groups.items() if group.stages and _is_asset(group)]

    def bookkeeping(self, stage: ResolvedStage) -> list[ResolvedStage]:
        """The bookkeeping stages that a stage reads."""
        return [self.stages[n] for n in self.upstream[stage.name] if not _is_asset(self.groups[self.stages[n].group])]

    # --- edges ---------------------------------------------------------------------------------------

    @cached_property
    def upstream(self) -> dict[str, tuple[str, ...]]:
        """For each stage the stages whose outs it reads: an out that equals, holds or lies in a dep."""
        makers = Overlaps((out.path, stage.name) for stage in self.stages.values() for out in stage.outs)
        return {
            name: tuple(maker for maker in dict.fromkeys(makers.of((*stage.deps, *stage.params))) if maker != name)
            for name, stage in self.stages.items()
        }

    @cached_property
    def group_upstream(self) -> dict[str, tuple[str, ...]]:
        """The same between entries under ``stages``."""
        return {
            name: tuple(dict.fromkeys(self.stages[u].group for s in group.stages for u in self.upstream[s.name]))
            for name, group in self.groups.items()
        }

    @cached_property
    def forward(self) -> dict[str, tuple[str, ...]]:
        """:attr:`group_upstream` without circles; see :func:`without_circles`."""
        item_readers: dict[str, set[str]] = {name: set() for name in self.groups}
        for stage in self.stages.values():
            read = (self.stages[name] for name in self.upstream[stage.name])
            item_readers[stage.group] |= {up.group for up in read if up.item == stage.item}
        return without_circles(self.group_upstream, item_readers)

    def order(self) -> list[ResolvedStage]:
        """All stages, producers first.

        Raises:
            DvcProjectError: when they form a cycle.
        """
        try:
            return [self.stages[name] for name in TopologicalSorter(self.upstream).static_order()]
        except CycleError as error:
            raise DvcProjectError(f"{self.path}: stages form a cycle: {' -> '.join(error.args[1])}") from error

    def sources(self, stage: ResolvedStage) -> tuple[str, ...]:
        """Deps that no other asset makes: code, configuration, data from outside."""
        bookkeeping = {producer.name for producer in self.bookkeeping(stage)}
        makers = [self.stages[name] for name in self.upstream[stage.name] if name not in bookkeeping]
        produced = [out.path for maker in makers for out in maker.outs]
        return tuple(dep for dep in stage.deps if not any(overlap(dep, path) for path in produced))

    # --- the workspace -------------------------------------------------------------------------------

    def params(self, stage: ResolvedStage) -> dict[str, dict[str, Any]]:
        """The stage's slice of each of its parameter files, as ``dvc.lock`` would record it.

        Absent files and keys are absent.
        """
        trees = {file: self._data(file) for file in stage.params if (self.root / file).exists()}
        return {file: select(tree, keys) if (keys := stage.params[file]) else tree for file, tree in trees.items()}

    def _data(self, file: str) -> dict[str, Any]:
        """A file of parameters, read once: all items of a stage ask for it."""
        if file not in self._read:
            self._read[file] = read_data(self.root / file)
        return self._read[file]

    def own_inputs(self, stage: ResolvedStage) -> dict[str, Any]:
        """What decides a stage's result besides the data of other stages: parameters and md5s of sources.

        Raises:
            DvcProjectError: when a file of parameters cannot be read.
        """
        now = self.derived.md5s
        paths = [path for path in self.sources(stage) if self.workspace.reaches(path)]
        return {"params": self.params(stage), "sources": {p: now.get(p) or self.workspace.md5(p) for p in paths}}

    def code_version(self, group: str, recorded: Mapping[str, Entry] | None = None) -> str:
        """A digest of the unexpanded ``cmd`` and of the inputs that all items share: the same for every partition.

        Args:
            recorded: entries of ``dvc.lock`` by stage; with them it is the version of what ran, not of what lies here.
        """
        stages = [stage for stage in self.groups[group].stages if recorded is None or stage.name in recorded]
        template: Any = stages[0].template if stages else None
        inputs: dict[tuple[str, ...], Any] = {}
        for number, stage in enumerate(stages):
            entry = None if recorded is None else recorded[stage.name]
            present = self._present_inputs(stage) if entry is None else self._recorded_inputs(stage, entry)
            if entry is not None and entry.cmd != stage.cmd:
                template = entry.cmd  # what its template was is not recorded
            if stage.frozen:
                continue  # DVC does not look at its inputs
            leaves = {("sources", path): md5 for path, md5 in present["sources"].items()}
            leaves |= {(file, key): v for file, values in present["params"].items() for key, v in values.items()}
            inputs = {k: v for k, v in leaves.items() if not number or (k in inputs and inputs[k] == v)}
        return hash_json([template, sorted(([*key], value) for key, value in inputs.items())])

    def _present_inputs(self, stage: ResolvedStage) -> dict[str, Any]:
        """:meth:`own_inputs`; of a file that cannot be read its fault, which the stage's state names, too."""
        try:
            return self.own_inputs(stage)
        except DvcProjectError as error:
            return {"params": {"": {"unreadable": str(error)}}, "sources": {}}

    def _recorded_inputs(self, stage: ResolvedStage, entry: Entry) -> dict[str, Any]:
        """What :meth:`own_inputs` was when a stage ran."""
        deps = {path: entry.inputs.deps.get(path) for path in self.sources(stage) if self.workspace.reaches(path)}
        return {"params": {file: entry.inputs.params.get(file, {}) for file in stage.params}, "sources": deps}

    # --- dvc.lock ------------------------------------------------------------------------------------

    def lock(self) -> dict[str, Entry]:
        """The entries of ``dvc.lock`` for stages that exist, read now; empty without the file.

        Raises:
            DvcProjectError: when the file is malformed.
        """
        return dict(self.read_lock().entries)

    def read_lock(self) -> Lock:
        """``dvc.lock``, of the stages that exist, with paths relative to the project.

        Raises:
            DvcProjectError: when DVC would refuse the file.
        """
        return Lock.read(self.root, {name: self._path_resolver(stage.wdir) for name, stage in self.stages.items()})


def _params(entries: Iterable[Any]) -> dict[str, tuple[str, ...]]:
    """File -> keys; no keys means the whole file."""
    files: dict[str, list[str]] = {}
    complete_files: set[str] = set()
    for entry in entries:
        for file, keys in entry.items() if isinstance(entry, Mapping) else [(PARAMS_FILE, [entry])]:
            files.setdefault(str(file), []).extend(str(key) for key in keys or [])
            complete_files |= set() if keys else {str(file)}
    return {file: () if file in complete_files else tuple(dict.fromkeys(keys)) for file, keys in files.items()}


def stages_of(root: Path) -> dict[str, ResolvedStage]:
    """All stages by name, items included (``grids@0``); none where the project has no ``dvc.yaml``.

    Raises:
        DvcProjectError: see :class:`DvcProject`.
    """
    return DvcProject(root).stages if (root / GRAPH_FILE).is_file() else {}
