"""Translator: how a stage becomes an asset. Subclass :class:`DagsterDvcTranslator` to change it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_dvc.describing import describe_outs
from dvc_project.derived import Derived
from dvc_project.errors import DvcProjectError
from dvc_project.paths import overlap
from dvc_project.project import DvcProject, Group, ResolvedStage
from dvc_project.tracked import Tracked

STAGE_KEY = "dvc/stage"  # metadata of an asset: the entry of dvc.yaml that it stands for
ARTIFACTS_KEY = "dvc/artifacts"  # metadata: entries under `artifacts` whose paths lie in what the asset holds
Translation = Callable[[dg.AssetSpec, Mapping[str, Any]], dg.AssetSpec]
_SETTINGS = {"asset", "group", "kinds", "owners", "pool", "tags", "key", "table"}
_NO_NAME = re.compile(r"[^A-Za-z0-9_]")


class DagsterDvcTranslator:
    """Asset key, spec and partitions of an entry of ``dvc.yaml``.

    A stage's ``meta: {dagster: {...}}`` may set ``group``, ``kinds``, ``owners``, ``pool``, ``tags``, ``key`` and
    ``table``, the file inside its out whose rows and columns the page shows; its ``desc`` is the description. With
    ``asset: false`` it is bookkeeping, and no asset: what it writes counts as code of the stages that read it.
    """

    def settings(self, group: Group) -> Mapping[str, Any]:
        """The stage's ``meta.dagster``.

        Raises:
            DvcProjectError: for a setting that does not exist.
        """
        settings = group.meta.get("dagster") or {}
        if unknown := set(settings) - _SETTINGS:
            names = ", ".join(sorted(_SETTINGS))
            raise DvcProjectError(f"stage {group.name}: meta.dagster has no {min(unknown)!r}; known: {names}")
        return dict(settings)

    def get_asset_key(self, group: Group) -> dg.AssetKey:
        key = self.settings(group).get("key", group.name)
        return dg.AssetKey(key if isinstance(key, list) else str(key).replace("-", "_").split("/"))

    def get_pool(self, group: Group) -> str | None:
        return self.settings(group).get("pool")

    def get_partitions_def(self, group: Group) -> dg.PartitionsDefinition | None:
        """Items of a ``matrix`` or ``foreach`` as partitions: one or two dimensions, more as flat item keys."""
        axes = {name: dg.StaticPartitionsDefinition(list(keys)) for name, keys in group.dimensions.items()}
        if not axes:
            return None
        if len(axes) == 2:
            return dg.MultiPartitionsDefinition(axes)
        if len(axes) == 1:
            return next(iter(axes.values()))
        return dg.StaticPartitionsDefinition([str(stage.item) for stage in group.stages])

    def partition_key(self, stage: ResolvedStage) -> str | None:
        """The partition that a stage is, None for a plain stage."""
        if not stage.coordinates:
            return None
        if len(stage.coordinates) == 2:
            return dg.MultiPartitionKey(dict(stage.coordinates))
        return next(iter(stage.coordinates.values())) if len(stage.coordinates) == 1 else stage.item

    def get_partition_mapping(self, project: DvcProject, up: Group, down: Group) -> dg.PartitionMapping | None:
        """Which partitions of ``up`` each partition of ``down`` reads, from the edges between the stages.

        Where Dagster has no mapping for the edges (two dimensions, mixed), each partition is said to read all.
        """
        if not up.dimensions:
            return None
        ours = {stage.name: stage for stage in up.stages}
        reads = {d.name: [ours[u] for u in project.upstream[d.name] if u in ours] for d in down.stages}
        everything = all(len(parents) == len(ours) for parents in reads.values())
        if everything and (len(ours) > 1 or not down.dimensions):
            return dg.AllPartitionMapping()
        if not down.dimensions:
            keys = [str(self.partition_key(parent)) for parents in reads.values() for parent in parents]
            return dg.SpecificPartitionsPartitionMapping(keys)
        return self._item_mapping(up, down, {self.partition_key(d): reads[d.name] for d in down.stages})

    def _item_mapping(
        self, up: Group, down: Group, reads: Mapping[str | None, list[ResolvedStage]]
    ) -> dg.PartitionMapping:
        keys = {child: {self.partition_key(parent) for parent in parents} for child, parents in reads.items()}
        if up.dimensions == down.dimensions and all(parents == {child} for child, parents in keys.items()):
            return dg.IdentityPartitionMapping()
        if 2 not in (len(up.dimensions), len(down.dimensions)):
            table: dict[str, set[str]] = {}
            for child, parents in keys.items():
                for parent in parents:
                    table.setdefault(str(parent), set()).add(str(child))
            return dg.StaticPartitionMapping(table)
        shared = set(up.dimensions) & set(down.dimensions)
        if len(shared) == 1 and {len(up.dimensions), len(down.dimensions)} == {1, 2}:
            return dg.MultiToSingleDimensionPartitionMapping(partition_dimension_name=shared.pop())
        return dg.AllPartitionMapping()

    def get_deps(self, project: DvcProject, group: Group) -> list[dg.AssetDep]:
        upstream_names = set(project.assets) - {group.name}
        upstream = [project.groups[name] for name in project.forward[group.name] if name in upstream_names]
        read = {dep for stage in group.stages for dep in stage.deps}
        tracked = [out for out in project.tracked if any(overlap(out.path, dep) for dep in read)]
        return [
            *(
                dg.AssetDep(self.get_asset_key(up), partition_mapping=self.get_partition_mapping(project, up, group))
                for up in upstream
            ),
            *(dg.AssetDep(self.get_tracked_key(out)) for out in tracked),
        ]

    def get_tracked_key(self, tracked: Tracked) -> dg.AssetKey:
        """The key of what a ``.dvc`` file tracks: its path (``meta.dagster.key`` of the file chooses another)."""
        key = (tracked.meta.get("dagster") or {}).get("key")
        if key is None:
            return dg.AssetKey([_NO_NAME.sub("_", part) for part in tracked.path.split("/")])
        return dg.AssetKey(key if isinstance(key, list) else str(key).split("/"))

    def get_tracked_spec(self, project: DvcProject, tracked: Tracked) -> dg.AssetSpec:
        """The external asset of what a ``.dvc`` file tracks: no run of Dagster makes it."""
        return dg.AssetSpec(
            key=self.get_tracked_key(tracked),
            description=tracked.desc,
            group_name=(tracked.meta.get("dagster") or {}).get("group"),
            kinds={"dvc"},
            metadata={
                "dvc/file": tracked.file,
                "dvc/outs": dg.MetadataValue.md(f"- `{tracked.path}`"),
                **({"dvc/imported_from": tracked.origin} if tracked.origin else {}),
                **_artifacts(project, [tracked.path]),
            },
        )

    def get_asset_spec(self, project: DvcProject, group: Group) -> dg.AssetSpec:
        """The asset of an entry of ``dvc.yaml``: edges, partitions and code version come from the stage."""
        settings = self.settings(group)
        kinds = set(settings.get("kinds", []))
        command = group.stages[0].template if group.stages else ""
        outs = sorted({out.path for stage in group.stages for out in stage.outs})
        return dg.AssetSpec(
            key=self.get_asset_key(group),
            deps=self.get_deps(project, group),
            description=group.desc,
            group_name=settings.get("group"),
            kinds=kinds | {"dvc"} if len(kinds) < 3 else kinds,  # Dagster takes three
            owners=settings.get("owners", []),
            tags=settings.get("tags", {}),
            partitions_def=self.get_partitions_def(group),
            code_version=project.code_version(group.name),
            metadata={
                STAGE_KEY: group.name,
                "dvc/cmd": "\n".join(command) if isinstance(command, list) else str(command),
                "dvc/outs": dg.MetadataValue.md("\n".join(f"- `{path}`" for path in outs)),
                **_artifacts(project, outs),
            },
        )

    def get_materialization_metadata(self, project: DvcProject, stage: ResolvedStage) -> Mapping[str, Any]:
        """What a materialisation shows besides what the stage reported itself: by default what its outs say."""
        return describe_outs(project, stage, self.get_headline(stage), partial(self.get_column_description, stage))

    def get_headline(self, stage: ResolvedStage) -> Sequence[Sequence[str]]:  # noqa: ARG002 (a hook)
        """The figures to show first: name patterns, of each entry the first that fits any figure."""
        return ()

    def get_column_description(self, stage: ResolvedStage, column: str) -> str | None:  # noqa: ARG002 (a hook)
        """What a column of the stage's main table holds."""
        return None

    def get_derived(self, root: Path) -> Derived:  # noqa: ARG002 (a hook)
        """What bookkeeping stages would write now; by default that is not known, and they have to run."""
        return Derived()

    def get_usual_seconds(self, project: DvcProject, stage: ResolvedStage) -> float | None:  # noqa: ARG002 (a hook)
        """How long a run of the stage takes, None = not known; asked where Dagster did not see it run."""
        return None


class TranslatedDvcTranslator(DagsterDvcTranslator):
    """The default translator, followed by a function from the spec of an asset to the one that Dagster gets.

    The function is called with the spec and with ``name``, ``meta`` and ``desc`` of the stage; of a ``.dvc`` file the
    name is the path of its out. It also decides the keys of edges, which it chooses from a spec that has a key only.
    """

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        self._keys: dict[tuple[bool, str], dg.AssetKey] = {}

    def get_asset_key(self, group: Group) -> dg.AssetKey:
        return self._key(super().get_asset_key(group), group.name, group)

    def get_asset_spec(self, project: DvcProject, group: Group) -> dg.AssetSpec:
        spec = super().get_asset_spec(project, group)
        return self._translate(spec.replace_attributes(key=super().get_asset_key(group)), group.name, group)

    def get_tracked_key(self, tracked: Tracked) -> dg.AssetKey:
        return self._key(super().get_tracked_key(tracked), tracked.path, tracked)

    def get_tracked_spec(self, project: DvcProject, tracked: Tracked) -> dg.AssetSpec:
        spec = super().get_tracked_spec(project, tracked)
        return self._translate(spec.replace_attributes(key=super().get_tracked_key(tracked)), tracked.path, tracked)

    def _key(self, key: dg.AssetKey, name: str, source: Group | Tracked) -> dg.AssetKey:
        place = (isinstance(source, Tracked), name)
        if place not in self._keys:
            self._keys[place] = self._translate(dg.AssetSpec(key), name, source).key
        return self._keys[place]

    def _translate(self, spec: dg.AssetSpec, name: str, source: Group | Tracked) -> dg.AssetSpec:
        return self._translation(spec, {"name": name, "meta": source.meta, "desc": source.desc})


def _artifacts(project: DvcProject, paths: Sequence[str]) -> dict[str, Any]:
    """The entries under ``artifacts`` for these paths, as a list that the asset's page shows."""
    lines = [
        f"- **{entry.name}**" + "".join(f", {text}" for text in (entry.type, *entry.labels, entry.desc) if text)
        for entry in project.artifacts
        if any(overlap(entry.path, path) for path in paths)
    ]
    return {ARTIFACTS_KEY: dg.MetadataValue.md("\n".join(lines))} if lines else {}


def stage_of(project: DvcProject, translator: DagsterDvcTranslator, group: str, partition: str | None) -> ResolvedStage:
    """The stage that a partition of an asset stands for.

    Raises:
        DvcProjectError: when there is none.
    """
    for stage in project.groups[group].stages:
        if translator.partition_key(stage) == partition:
            return stage
    raise DvcProjectError(f"{project.path}: stage {group} has no item for the partition {partition!r}")
