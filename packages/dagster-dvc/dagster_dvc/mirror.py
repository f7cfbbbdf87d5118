"""Mirror: brings Dagster's stale marks in step with ``dvc.lock``, no matter who ran the stages.

An event is reported where ``dvc.lock`` has another entry than the one last reported: a run that was made elsewhere, or
restored. Its tags say with which code and which inputs it was made, so that Dagster calls the asset stale where its
code version, or that of an input, is another now. Nothing else is reported: an edited file is no run, and automation,
asset sensors and freshness checks would take the event for one. What ``dvc status`` calls changed and Dagster's marks
do not show (a file edited after the code location was loaded, one item of several) is what the check
``in_sync_with_dvc`` says, which is kept up to date.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_dvc.describing import holds_recorded
from dagster_dvc.metrics import notes_last
from dagster_dvc.reproduction import LOCK_DIGEST_TAG, PROJECT, project_tag
from dagster_dvc.translator import DagsterDvcTranslator
from dvc_project.errors import DvcProjectError
from dvc_project.hashing import hash_json
from dvc_project.lockfile import Entry
from dvc_project.project import DvcProject, ResolvedStage
from dvc_project.state import ProjectState, StageState, data_version

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
# Whether the outs of the reported version lay in the workspace: a pulled `dvc.lock` comes before its data.
OUTS_TAG = "dvc/outs"
PRESENT, ABSENT = "present", "absent"
EVENTS_READ = 50  # of an asset, to find the last one of this project


@dataclass(frozen=True)
class Event:
    """The last event of an asset or of one partition."""

    storage_id: int
    tags: Mapping[str, str]

    @property
    def version(self) -> str:
        return self.tags.get(DATA_VERSION, NEVER_OBSERVED)


class Events:
    """The last events of assets in an instance, each read once."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance = instance
        self._by_asset: dict[tuple[dg.AssetKey, str | None], Event | None] = {}

    def last(self, key: dg.AssetKey, partition: str | None = None) -> Event | None:
        if (key, partition) not in self._by_asset:
            self._by_asset[key, partition] = next(iter(self._fetch(key, partition, limit=1)), None)
        return self._by_asset[key, partition]

    def last_of(self, root: Path, key: dg.AssetKey, partition: str | None = None) -> Event | None:
        """The last event that a project reported, or one of an earlier version, which named none."""
        last = self.last(key, partition)
        tag = project_tag(root)
        if last is None or last.tags.get(PROJECT, tag) == tag:
            return last
        events = self._fetch(key, partition, limit=EVENTS_READ)
        return next((event for event in events if event.tags.get(PROJECT, tag) == tag), None)

    def forget(self, key: dg.AssetKey, partition: str | None) -> None:
        self._by_asset.pop((key, partition), None)

    def _fetch(self, key: dg.AssetKey, partition: str | None, limit: int) -> list[Event]:
        events = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[partition] if partition else None)
        records = self.instance.fetch_materializations(events, limit=limit).records
        return [
            Event(r.storage_id, dict((r.asset_materialization and r.asset_materialization.tags) or {})) for r in records
        ]


class Mirror:
    """Compares one reading of the project with one instance."""

    def __init__(
        self,
        project: DvcProject,
        instance: dg.DagsterInstance,
        graph: Any,
        translator: DagsterDvcTranslator,
    ) -> None:
        """``graph``: ``asset_graph`` of the loaded code location, whose type has no public name."""
        self.project, self.instance, self.translator = project, instance, translator
        keys = [key for key in graph.get_all_asset_keys() if not graph.get(key).is_external]
        self._parents = {key: frozenset(graph.get(key).parent_keys) for key in keys}
        self._events, self._lock = Events(instance), project.lock()
        self._groups = {translator.get_asset_key(group): group for group in project.groups.values()}
        self._keys = frozenset(graph.get_all_asset_keys())

    def tick(self) -> list[str]:
        """Report what Dagster does not know yet, producers first; a line with the reason for each event."""
        reports = list(self._tick_tracked())
        for state in ProjectState(self.project).all():
            key = self.translator.get_asset_key(self.project.groups[state.stage.group])
            if state.entry is None or key not in self._parents:
                continue
            if reason := self._difference(key, state, state.entry):
                self._report(key, state, state.entry, reason)
                reports.append(f"{state.stage.name}: {reason}")
        return reports

    def _tick_tracked(self) -> Iterator[str]:
        """Versions of what ``.dvc`` files track."""
        for tracked in self.project.tracked:
            key, version = self.translator.get_tracked_key(tracked), tracked.md5
            last = self._events.last_of(self.project.root, key)
            if key not in self._keys or version is None or (last is not None and last.version == version):
                continue
            sizes = {"dvc/bytes": tracked.bytes, "dvc/files": tracked.files}
            self.instance.report_runless_asset_event(
                dg.AssetMaterialization(
                    asset_key=key,
                    tags={DATA_VERSION: version, USER_PROVIDED: "true", PROJECT: project_tag(self.project.root)},
                    metadata={
                        "dvc/md5": version,
                        **{name: value for name, value in sizes.items() if value is not None},
                    },
                )
            )
            self._events.forget(key, None)
            reason = "unknown to Dagster" if last is None else f"{tracked.file} has another version"
            yield f"{tracked.path}: {reason}"

    def _difference(self, key: dg.AssetKey, state: StageState, entry: Entry) -> str | None:
        last = self._events.last_of(self.project.root, key, self.translator.partition_key(state.stage))
        if last is None:
            return "unknown to Dagster"
        if last.tags.get(LOCK_DIGEST_TAG) != entry.digest:
            return "another run is recorded"
        if last.tags.get(OUTS_TAG) == ABSENT and holds_recorded(self.project, state.stage, entry):
            return "its outs are there now"
        return None

    def _is_new(self, parent: dg.AssetKey, state: StageState) -> bool:
        """DVC's reading of an edge."""
        group = self._groups.get(parent)
        return group is not None and any(stage.name in state.changed_upstream for stage in group.stages)

    def _partitions(self, parent: dg.AssetKey, stage: ResolvedStage) -> list[str] | None:
        """The partitions of a parent that a stage reads, None when the parent has none."""
        group = self._groups.get(parent)
        if group is None or not group.dimensions:
            return None
        reads = set(self.project.upstream[stage.name])
        return [str(self.translator.partition_key(s)) for s in group.stages if s.name in reads]

    def _read_version(self, parent: dg.AssetKey, state: StageState) -> str:
        """The version of a parent that a run read, which is not the present one."""
        deps = state.entry.inputs.deps if state.entry else {}
        outs = [out.path for stage in self._groups[parent].stages for out in stage.outs if out.kind == "outs"]
        if len(outs) == 1 and outs[0] in deps:
            return deps[outs[0]]
        return OUTDATED + hash_json(sorted(deps.items()))

    def _version(self, parent: dg.AssetKey) -> str:
        last = self._events.last(parent)
        if last is not None:
            return last.version
        return NEVER_MATERIALISED if parent in self._parents else NEVER_OBSERVED

    def _report(self, key: dg.AssetKey, state: StageState, entry: Entry, reason: str) -> None:
        partition = self.translator.partition_key(state.stage)
        present = holds_recorded(self.project, state.stage, entry)
        self.instance.report_runless_asset_event(
            dg.AssetMaterialization(
                asset_key=key,
                partition=partition,
                tags={**self._tags(key, state, entry), OUTS_TAG: PRESENT if present else ABSENT},
                metadata=notes_last(
                    {
                        **(self._description(state.stage) if present else {}),
                        "dvc/stage": state.stage.name,
                        "dvc/mirrored": reason,
                        PROJECT: str(self.project.root),
                        "dvc/md5": dg.MetadataValue.json(dict(entry.outs)),
                    }
                ),
            )
        )
        self._events.forget(key, partition)

    def tags(self, stage: ResolvedStage) -> dict[str, str]:
        """What an event about the recorded version of a stage carries, for Dagster's marks to be DVC's.

        Raises:
            DvcProjectError: when no run of the stage is recorded.
        """
        state = ProjectState(self.project).of(stage)
        if state.entry is None:
            raise DvcProjectError(f"{self.project.root / 'dvc.lock'}: no run of stage {stage.name} is recorded")
        return self._tags(self.translator.get_asset_key(self.project.groups[stage.group]), state, state.entry)

    def _tags(self, key: dg.AssetKey, state: StageState, entry: Entry) -> dict[str, str]:
        partition = self.translator.partition_key(state.stage)
        tags = {
            DATA_VERSION: data_version(state.stage, entry),
            USER_PROVIDED: "true",
            CODE_VERSION: OUTDATED + "always"
            if state.stage.always_changed
            else self.project.code_version(state.stage.group, self._lock),
            LOCK_DIGEST_TAG: entry.digest,
            PROJECT: project_tag(self.project.root),
        }
        for parent in self._parents[key]:
            tags |= self._input_tags(parent, state)
        if isinstance(partition, dg.MultiPartitionKey):
            tags |= {f"dagster/partition/{axis}": name for axis, name in partition.keys_by_dimension.items()}
        return tags

    def _description(self, stage: ResolvedStage) -> Mapping[str, Any]:
        """What the outs in the workspace say."""
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
            version = self._read_version(parent, state) if new else None
            pointer = NO_POINTER if newest is None else str(newest)
            return {INPUT_VERSION + name: version or self._version(parent), INPUT_POINTER + name: pointer}
        pointer = BEFORE_ALL if new else NO_POINTER if newest is None else str(newest)
        version = hash_json([event.version for event in events if event])
        return {INPUT_VERSION + name: version, INPUT_POINTER + name: pointer}
