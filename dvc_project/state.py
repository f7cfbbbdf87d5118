"""Which stages are up to date, by ``dvc.lock`` and the sources in the workspace.

The answer of ``dvc status``, found without asking it: it refuses to answer while a stage runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dvc_project.cache import cached_listing
from dvc_project.hashing import digest, listing_md5
from dvc_project.lockfile import Entry
from dvc_project.paths import overlap
from dvc_project.project import DvcProject, Stage


def data_version(stage: Stage, entry: Entry) -> str:
    """The md5 of what the stage made: of its one out, or a digest of several.

    Metrics and plots count only where there is nothing else: they may hold seconds, and say nothing new
    to a stage that reads the data.
    """
    paths = [out.path for out in stage.outs if out.kind == "outs"] or [out.path for out in stage.outs]
    md5s = {path: entry.outs.get(path, "") for path in paths}
    return next(iter(md5s.values())) if len(md5s) == 1 else digest(md5s)


@dataclass(frozen=True)
class StageState:
    """How a stage's record compares with now; empty ``reasons`` and ``changed_upstream`` mean up to date."""

    stage: Stage
    entry: Entry | None
    reasons: tuple[str, ...] = ()
    changed_upstream: frozenset[str] = frozenset()

    @property
    def in_sync(self) -> bool:
        return self.entry is not None and not self.reasons and not self.changed_upstream


class ProjectState:
    """A comparison of every stage's lock entry with the workspace's sources and the upstream entries."""

    def __init__(self, project: DvcProject) -> None:
        self.project, self.lock = project, project.lock()
        self._outs = {
            out.path: self.lock[name].outs.get(out.path)
            for name, stage in project.stages.items()
            if name in self.lock
            for out in stage.outs
        }

    def of(self, stage: Stage) -> StageState:
        entry = self.lock.get(stage.name)
        if entry is None:
            return StageState(stage, None, ("never ran",))
        if derived := self._derived(stage):
            return StageState(stage, entry, tuple(self._unwritten(stage, derived)))
        return StageState(stage, entry, tuple(self._reasons(stage, entry)), self._changed_upstream(stage, entry))

    def all(self) -> list[StageState]:
        """Every stage's state, producers first."""
        return [self.of(stage) for stage in self.project.order()]

    def _derived(self, stage: Stage) -> dict[str, str]:
        """What the stage would write now, where the project can say it."""
        paths = [out.path for out in stage.outs]
        return {p: md5 for p, md5 in self.project.derived.md5s.items() if any(overlap(p, path) for path in paths)}

    def _unwritten(self, stage: Stage, derived: Mapping[str, str]) -> list[str]:
        """Whether the stage is always asked anew does not matter: its answer is known."""
        gone = [out.path for out in stage.outs if self.project.workspace.md5(out.path) != self._outs.get(out.path)]
        changed = [path for path, md5 in derived.items() if self.project.workspace.md5(path) != md5]
        return [f"{path} is not as recorded" for path in gone] + [f"{path} would change" for path in changed]

    def _reasons(self, stage: Stage, entry: Entry) -> list[str]:
        reasons = ["always changed"] if stage.always_changed else []
        if entry.cmd != stage.cmd:
            reasons.append("command changed")
        reasons += [f"{out.path} is a new out" for out in stage.outs if out.path not in entry.outs]
        if stage.frozen:
            return reasons
        inputs = self.project.own_inputs(stage)
        reasons += _param_changes(stage, inputs["params"], entry.inputs.params)
        for path, md5 in inputs["sources"].items():
            if entry.inputs.deps.get(path) != md5:
                reasons += self._changes(path, entry.inputs.deps.get(path, "")) or [f"{path} changed"]
        return reasons

    def _changes(self, path: str, recorded: str) -> list[str]:
        derived = self.project.derived
        return list(derived.changes(path, recorded)) if path in derived.md5s else []

    def _changed_upstream(self, stage: Stage, entry: Entry) -> frozenset[str]:
        if stage.frozen:
            return frozenset()
        sources = set(self.project.sources(stage))
        stale = {d for d in stage.deps if d not in sources and not self._is_current(d, entry.inputs.deps.get(d))}
        return frozenset(
            name
            for name in self.project.upstream[stage.name]
            if any(overlap(out.path, dep) for out in self.project.stages[name].outs for dep in stale)
        )

    def _is_current(self, dep: str, recorded: str | None) -> bool:
        """Whether a dep that stages make is still what this record saw."""
        if recorded is None:
            return False
        if self._outs.get(dep):
            return self._outs[dep] == recorded
        assembled = self._assembled(dep)
        # Files beside the outs belong to a folder's md5 too: the workspace has the last word.
        return recorded in (assembled, self.project.workspace.md5(dep))

    def _assembled(self, dep: str) -> str | None:
        """The md5 of a path inside an out, or of a folder that holds outs, from the recorded listings."""
        files: dict[str, str] = {}
        for path, md5 in self._outs.items():
            if md5 is None or not overlap(path, dep):
                continue
            if md5.endswith(".dir"):
                listing = cached_listing(self.project.root, md5)
                if listing is None:
                    return None
                files |= {f"{path}/{name}": value for name, value in listing.items()}
            else:
                files[path] = md5
        if dep in files:
            return files[dep]
        inside = {name.removeprefix(dep + "/"): md5 for name, md5 in files.items() if name.startswith(dep + "/")}
        return listing_md5(inside) if inside else None


def _param_changes(
    stage: Stage, now: Mapping[str, Mapping[str, Any]], recorded: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    changes = []
    for file, keys in stage.params.items():
        here, there = now.get(file, {}), recorded.get(file, {})
        for key in keys or {**here, **there}:
            if key not in here:
                changes.append(f"{file}: {key} is gone")
            elif key not in there or here[key] != there[key]:
                changes.append(f"{file}: {key} changed")
    return changes
