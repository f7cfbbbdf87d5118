"""Status of the stages: up to date or not, by ``dvc.lock`` and the bytes in the workspace.

The result equals that of ``dvc status``, but DVC is not called, because ``dvc status`` fails while a stage runs. The
outs that a running stage writes are not read: until the stage ends, its last record in ``dvc.lock`` counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dvc_project.cache import Cache
from dvc_project.errors import DvcProjectError
from dvc_project.hashing import Workspace, hash_json, listing_md5
from dvc_project.lockfile import Entry, dataset_digest
from dvc_project.paths import Overlaps, overlap
from dvc_project.project import DvcProject, Out, ResolvedStage
from dvc_project.rwlock import writing

DATASET = "ds://"


def data_version(stage: ResolvedStage, entry: Entry) -> str:
    """The md5 of what the stage made: of its one out, or a digest of several.

    Metrics and plots count only where there is nothing else: they may hold seconds, and say nothing new
    to a stage that reads the data.
    """
    paths = [out.path for out in stage.outs if out.kind == "outs"] or [out.path for out in stage.outs]
    md5s = {path: entry.outs.get(path, "") for path in paths}
    return next(iter(md5s.values())) if len(md5s) == 1 else hash_json(md5s)


def differing_outs(
    workspace: Workspace, stage: ResolvedStage, entry: Entry, skip: Mapping[str, int] | None = None
) -> list[str]:
    """The outs of a stage whose bytes in the workspace are not those that were recorded, and how.

    Args:
        skip: paths that are not looked at.
    """
    outs = [out for out in stage.outs if not any(overlap(out.path, path) for path in skip or {})]
    return [why for out in outs if (why := _difference(workspace, out, entry))]


def _difference(workspace: Workspace, out: Out, entry: Entry) -> str | None:
    recorded = entry.outs.get(out.path)
    if recorded is None:
        return f"{out.path} is a new out"
    if not workspace.reaches(out.path):
        return None
    now = None if workspace.is_hidden(out.path) else workspace.md5(out.path)
    if now is None:
        return f"{out.path} is missing"
    return None if now == recorded else f"{out.path} is not as recorded"


@dataclass(frozen=True)
class StageState:
    """How a stage's record compares with now; empty ``reasons`` and ``changed_upstream`` mean up to date.

    ``unchecked`` are deps elsewhere, by URL: DVC would ask for them over the network, and here their record counts.
    """

    stage: ResolvedStage
    entry: Entry | None
    reasons: tuple[str, ...] = ()
    changed_upstream: frozenset[str] = frozenset()
    unchecked: tuple[str, ...] = ()

    @property
    def in_sync(self) -> bool:
        return self.entry is not None and not self.reasons and not self.changed_upstream


class ProjectState:
    """A comparison of every stage's lock entry with the workspace.

    Raises:
        DvcProjectError: when DVC would refuse ``dvc.lock``.
    """

    def __init__(self, project: DvcProject) -> None:
        read = project.read_lock()
        self.project, self.lock, self._pinned = project, dict(read.entries), read.datasets
        self._writing, self._cache = writing(project.root), Cache(project.root)
        self._outs = {
            out.path: self.lock[name].outs.get(out.path)
            for name, stage in project.stages.items()
            if name in self.lock
            for out in stage.outs
        }

    def of(self, stage: ResolvedStage) -> StageState:
        entry = self.lock.get(stage.name)
        if entry is None:
            return StageState(stage, None, ("never ran", *self._absent_keys(stage)))
        if derived := self._derived(stage):
            return StageState(stage, entry, tuple(self._unwritten(stage, derived)))
        elsewhere = [dep for dep in stage.deps if not self.project.workspace.reaches(dep) and not _is_dataset(dep)]
        reasons, upstream = tuple(self._reasons(stage, entry)), self._changed_upstream(stage, entry)
        return StageState(stage, entry, reasons, upstream, tuple(elsewhere))

    def all(self) -> list[StageState]:
        """Every stage's state, producers first."""
        return [self.of(stage) for stage in self.project.order()]

    def is_settled(self, stage: ResolvedStage) -> bool:
        """Whether DVC, asked to reproduce a stage, would find nothing to do, for certain.

        What lies elsewhere, only DVC looks at; and while a process writes what the stage reads or makes, DVC waits.
        """
        state, paths = self.of(stage), [*stage.deps, *(out.path for out in stage.outs)]
        busy = any(overlap(path, written) for path in paths for written in self._writing)
        return state.in_sync and not state.unchecked and not busy

    def to_run(self) -> set[str]:
        """The stages that a run of the graph would run: those out of date, and at most those behind them.

        What the project writes itself (``derived``) is no stage of these: its readers' own reasons say what changed.
        """
        names: set[str] = set()
        for state in self.all():
            if not self._derived(state.stage) and (
                state.reasons or names.intersection(self.project.upstream[state.stage.name])
            ):
                names.add(state.stage.name)
        return names

    def _derived(self, stage: ResolvedStage) -> dict[str, str]:
        """What the stage would write now, where the project can say it."""
        return dict(self._derivable.of(out.path for out in stage.outs))

    @cached_property
    def _derivable(self) -> Overlaps[tuple[str, str]]:
        return Overlaps((path, (path, md5)) for path, md5 in self.project.derived.md5s.items())

    def _unwritten(self, stage: ResolvedStage, derived: Mapping[str, str]) -> list[str]:
        """Whether the stage is always asked anew does not matter: its answer is known."""
        differing = [out.path for out in stage.outs if self.project.workspace.md5(out.path) != self._outs.get(out.path)]
        changed = [path for path, md5 in derived.items() if self.project.workspace.md5(path) != md5]
        return [f"{path} is not as recorded" for path in differing] + [f"{path} would change" for path in changed]

    def _reasons(self, stage: ResolvedStage, entry: Entry) -> list[str]:
        is_callback = not (stage.deps or stage.params or stage.outs)
        reasons = ["always changed"] if stage.always_changed or is_callback else []
        if entry.cmd != stage.cmd:
            reasons.append("command changed")
        reasons += differing_outs(self.project.workspace, stage, entry, self._writing)
        reasons += [f"{out.path} is not in DVC's cache" for out in stage.outs if self._is_uncached(out, entry)]
        reasons += [
            f"{path} is recorded as {entry.spellings[path]}"
            for path, spelling in stage.spellings.items()
            if entry.spellings.get(path, spelling) != spelling
        ]
        if stage.frozen:
            return reasons
        try:
            inputs = self.project.own_inputs(stage)
        except DvcProjectError as error:
            return [*reasons, str(error)]
        reasons += _param_changes(stage, inputs["params"], entry.inputs.params)
        for path, md5 in inputs["sources"].items():
            then = entry.inputs.deps.get(path)
            if then != md5:
                reason = f"{path} is missing" if md5 is None else f"{path} changed"
                reasons += self._changes(path, then or "") or [reason]
        return reasons + [why for dep in stage.deps if (why := self._elsewhere(dep, entry.inputs.deps.get(dep)))]

    def _absent_keys(self, stage: ResolvedStage) -> list[str]:
        """As :func:`_absent_keys`, of a stage that never ran: a file that is not there may be another stage's out."""
        with suppress(DvcProjectError):
            return _absent_keys(stage, self.project.params(stage))
        return []

    def _is_uncached(self, out: Out, entry: Entry) -> bool:
        """Whether the cache lacks an out that it should hold, or some of its files."""
        md5 = entry.outs.get(out.path)
        if not out.cache or not md5 or not self.project.workspace.reaches(out.path):
            return False
        if any(overlap(out.path, path) for path in self._writing):
            return False
        files = self._cache.listing(md5) if md5.endswith(".dir") else {"": md5}
        return files is None or bool(self._cache.missing(files))

    def _elsewhere(self, dep: str, recorded: str | None) -> str | None:
        """What is wrong with a dep that is no path."""
        if self.project.workspace.reaches(dep):
            return None
        if not _is_dataset(dep):
            return f"{dep} is a new dep" if recorded is None else None
        name = dep.removeprefix(DATASET)
        declared, pinned = self.project.datasets.get(name), self._pinned.get(name)
        if declared is None:
            return f"{dep}: dvc.yaml has no data set {name!r}"
        if pinned is None or any(pinned.get(key) != value for key, value in declared.items() if value):
            return f"{dep} is not pinned as declared; run `dvc ds update {name}`"
        return None if recorded == dataset_digest(pinned) else f"{dep} changed"

    def _changes(self, path: str, recorded: str) -> list[str]:
        derived = self.project.derived
        return list(derived.changes(path, recorded)) if path in derived.md5s else []

    def _changed_upstream(self, stage: ResolvedStage, entry: Entry) -> frozenset[str]:
        if stage.frozen:
            return frozenset()
        sources = set(self.project.sources(stage))
        produced = [dep for dep in stage.deps if dep not in sources]
        stale = {d for d in produced if not self._is_current(d, entry.inputs.deps.get(d))}
        return frozenset(
            name
            for name in self.project.upstream[stage.name]
            if any(overlap(out.path, dep) for out in self.project.stages[name].outs for dep in stale)
        )

    def _is_current(self, dep: str, recorded: str | None) -> bool:
        """Whether a dep that stages make is still what this record saw."""
        if recorded is None:
            return False
        if any(overlap(dep, path) for path in self._writing):
            return recorded == (self._outs.get(dep) or self._assembled(dep))
        workspace = self.project.workspace
        if not workspace.reaches(dep):
            return self._outs.get(dep) in (None, recorded)
        return recorded == workspace.md5(dep)

    def _assembled(self, dep: str) -> str | None:
        """The md5 of a path inside an out, or of a folder that holds outs, from the recorded listings."""
        files: dict[str, str] = {}
        for path, md5 in self._outs.items():
            if md5 is None or not overlap(path, dep):
                continue
            if md5.endswith(".dir"):
                listing = self._cache.listing(md5)
                if listing is None:
                    return None
                files |= {f"{path}/{name}": value for name, value in listing.items()}
            else:
                files[path] = md5
        if dep in files:
            return files[dep]
        inside = {name.removeprefix(dep + "/"): md5 for name, md5 in files.items() if name.startswith(dep + "/")}
        return listing_md5(inside) if inside else None


def _is_dataset(dep: str) -> bool:
    return dep.startswith(DATASET)


def _absent_keys(stage: ResolvedStage, now: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Keys that dvc.yaml names and that their file lacks, a sentence a file: the stage cannot run."""
    absent = {file: [key for key in stage.params[file] if key not in here] for file, here in now.items()}
    return [
        f"{file} has no {', '.join(keys)}, which dvc.yaml names among the stage's params; "
        f"add {'them' if keys[1:] else 'it'} to {file}, or correct dvc.yaml"
        for file, keys in absent.items()
        if keys
    ]


def _param_changes(
    stage: ResolvedStage, now: Mapping[str, Mapping[str, Any]], recorded: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    changes = [f"{file} is missing" for file in stage.params if file not in now] + _absent_keys(stage, now)
    for file, here in now.items():
        keys, there = stage.params[file], recorded.get(file, {})
        for key in keys or {**here, **there}:
            if key in here and (key not in there or here[key] != there[key]):
                changes.append(f"{file}: {key} changed")
            elif key not in here and not keys:
                changes.append(f"{file}: {key} is gone")
    return changes
