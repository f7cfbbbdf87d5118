"""Bring Dagster's marks in step with ``dvc.lock``, whoever ran the stages.

Dagster calls an asset stale when the tags of its last event disagree with the code version and the
upstream events of now. DVC calls a stage changed when its lock entry disagrees with the sources and the
upstream outs of now. Wherever the two readings differ, or the lock entry is another than the one last
told, one event is reported whose tags make them agree. A second call reports nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from pipelines.dvc.describing import holds_recorded
from pipelines.dvc.hashing import digest
from pipelines.dvc.project import DvcProject, LockEntry, Stage
from pipelines.dvc.resource import LOCK_DIGEST_TAG
from pipelines.dvc.state import ProjectState, StageState, data_version
from pipelines.dvc.translator import DagsterDvcTranslator

DATA_VERSION = "dagster/data_version"
USER_PROVIDED = "dagster/data_version_is_user_provided"
CODE_VERSION = "dagster/code_version"
INPUT_VERSION = "dagster/input_data_version/"
INPUT_POINTER = "dagster/input_event_pointer/"
OUTDATED = "outdated-"
# What Dagster notes when an input has no event, or none can be pointed at.
NEVER_MATERIALISED, NEVER_OBSERVED, NO_POINTER = "NULL", "INITIAL", "NULL"
# Before every event: each event of a partition then counts as news.
BEFORE_ALL = "-1"


@dataclass(frozen=True)
class Event:
    """The last event of an asset or of one partition."""

    storage_id: int
    tags: Mapping[str, str]

    @property
    def version(self) -> str:
        return self.tags.get(DATA_VERSION, NEVER_OBSERVED)


class Events:
    """The last events of assets in an instance, each asked for once."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance = instance
        self._known: dict[tuple[dg.AssetKey, str | None], Event | None] = {}

    def last(self, key: dg.AssetKey, partition: str | None = None) -> Event | None:
        if (key, partition) not in self._known:
            self._known[key, partition] = self._fetch(key, partition)
        return self._known[key, partition]

    def before(self, key: dg.AssetKey, partition: str, storage_id: int) -> Event | None:
        """The last event of a partition up to ``storage_id``."""
        return self._fetch(key, partition, storage_id + 1)

    def forget(self, key: dg.AssetKey, partition: str | None) -> None:
        self._known.pop((key, partition), None)

    def _fetch(self, key: dg.AssetKey, partition: str | None, before: int | None = None) -> Event | None:
        chosen = dg.AssetRecordsFilter(
            asset_key=key, asset_partitions=[partition] if partition else None, before_storage_id=before
        )
        records = self.instance.fetch_materializations(chosen, limit=1).records
        if not records:
            return None
        happened = records[0].asset_materialization
        return Event(records[0].storage_id, dict((happened and happened.tags) or {}))


@dataclass(frozen=True)
class Mirrored:
    """One reported event and why."""

    stage: str
    reason: str


class Mirror:
    """Compares one reading of the project with one instance."""

    def __init__(
        self,
        project: DvcProject,
        instance: dg.DagsterInstance,
        code_versions: Mapping[dg.AssetKey, str | None],
        parents: Mapping[dg.AssetKey, frozenset[dg.AssetKey]],
        translator: DagsterDvcTranslator,
    ) -> None:
        """``code_versions`` and ``parents`` are those of the loaded code location, which Dagster compares with."""
        self.project, self.instance, self.translator = project, instance, translator
        self._code, self._parents = code_versions, parents
        self._events = Events(instance)
        self._groups = {translator.get_asset_key(group): group for group in project.groups.values()}

    def tick(self) -> list[Mirrored]:
        """Report what Dagster does not know yet, producers first."""
        found = []
        for state in ProjectState(self.project).all():
            key = self.translator.get_asset_key(self.project.groups[state.stage.group])
            if state.entry is None or key not in self._parents:
                continue
            if reason := self._difference(key, state, state.entry):
                self._report(key, state, state.entry, reason)
                found.append(Mirrored(state.stage.name, reason))
        return found

    def _difference(self, key: dg.AssetKey, state: StageState, entry: LockEntry) -> str | None:
        last = self._events.last(key, self.translator.partition_key(state.stage))
        if last is None:
            return "unknown to Dagster"
        if last.tags.get(LOCK_DIGEST_TAG) != entry.digest:
            return "another run is recorded"
        if (last.tags.get(CODE_VERSION) != self._code[key]) != bool(state.reasons):
            return "; ".join(state.reasons) or "code and parameters are as recorded"
        for parent in sorted(self._parents[key]):
            if self._reads_as_new(last, parent, state.stage) != self._is_new(parent, state):
                return f"{parent.to_user_string()} {'has changed' if self._is_new(parent, state) else 'is as recorded'}"
        return None

    def _is_new(self, parent: dg.AssetKey, state: StageState) -> bool:
        """DVC's reading of an edge."""
        group = self._groups.get(parent)
        return group is not None and any(stage.name in state.changed_upstream for stage in group.stages)

    def _reads_as_new(self, last: Event, parent: dg.AssetKey, stage: Stage) -> bool:
        """Dagster's reading of an edge: by version, or for partitions by events after the pointer."""
        if INPUT_VERSION + parent.to_user_string() not in last.tags:
            return True
        partitions = self._partitions(parent, stage)
        if partitions is None:
            return last.tags[INPUT_VERSION + parent.to_user_string()] != self._version(parent)
        pointer = last.tags.get(INPUT_POINTER + parent.to_user_string(), NO_POINTER)
        if pointer == NO_POINTER:
            return False
        for partition in partitions:
            newest = self._events.last(parent, partition)
            if newest is not None and newest.storage_id > int(pointer):
                seen = self._events.before(parent, partition, int(pointer))
                if seen is None or seen.version != newest.version:
                    return True
        return False

    def _partitions(self, parent: dg.AssetKey, stage: Stage) -> list[str] | None:
        """The partitions of a parent that a stage reads, None when the parent has none."""
        group = self._groups.get(parent)
        if group is None or not group.dimensions:
            return None
        reads = set(self.project.upstream[stage.name])
        return [str(self.translator.partition_key(s)) for s in group.stages if s.name in reads]

    def _version(self, parent: dg.AssetKey) -> str:
        last = self._events.last(parent)
        if last is not None:
            return last.version
        return NEVER_MATERIALISED if parent in self._code else NEVER_OBSERVED

    def _report(self, key: dg.AssetKey, state: StageState, entry: LockEntry, reason: str) -> None:
        partition = self.translator.partition_key(state.stage)
        code = self._code[key] or ""
        tags = {
            DATA_VERSION: data_version(state.stage, entry),
            USER_PROVIDED: "true",
            CODE_VERSION: OUTDATED + digest([entry.cmd, entry.params]) if state.reasons else code,
            LOCK_DIGEST_TAG: entry.digest,
        }
        for parent in self._parents[key]:
            tags |= self._input_tags(parent, state)
        if isinstance(partition, dg.MultiPartitionKey):
            tags |= {f"dagster/partition/{axis}": name for axis, name in partition.keys_by_dimension.items()}
        self.instance.report_runless_asset_event(
            dg.AssetMaterialization(
                asset_key=key,
                partition=partition,
                tags=tags,
                metadata={
                    **self._description(state.stage, entry),
                    "dvc/stage": state.stage.name,
                    "dvc/mirrored": reason,
                    "dvc/md5": dg.MetadataValue.json(dict(entry.outs)),
                },
            )
        )
        self._events.forget(key, partition)

    def _description(self, stage: Stage, entry: LockEntry) -> Mapping[str, Any]:
        """What the outs say, where the workspace holds them: a pulled ``dvc.lock`` comes without its data."""
        if not holds_recorded(self.project, stage, entry):
            return {}
        try:
            return self.translator.get_materialization_metadata(self.project, stage)
        except Exception as error:  # the marks matter more than the pictures
            return {"dvc/not_described": repr(error)}

    def _input_tags(self, parent: dg.AssetKey, state: StageState) -> dict[str, str]:
        name, new = parent.to_user_string(), self._is_new(parent, state)
        partitions = self._partitions(parent, state.stage)
        events = [self._events.last(parent, p) for p in ([None] if partitions is None else partitions)]
        newest = max((event.storage_id for event in events if event), default=None)
        if partitions is None:
            version = OUTDATED + digest(sorted(state.entry.deps.items()) if state.entry else []) if new else None
            pointer = NO_POINTER if newest is None else str(newest)
            return {INPUT_VERSION + name: version or self._version(parent), INPUT_POINTER + name: pointer}
        pointer = BEFORE_ALL if new else NO_POINTER if newest is None else str(newest)
        version = digest([event.version for event in events if event])
        return {INPUT_VERSION + name: version, INPUT_POINTER + name: pointer}
