"""One job for a whole DVC project, headless: ``dagster job execute -m pipelines.definitions -j whole_graph``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

# Private: `dagster.define_asset_job`, the public way to a job of assets, refuses assets of different partitions. It
# has no option that accepts them.
from dagster._core.definitions.assets.job.asset_job import build_asset_job, get_asset_graph_for_job
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from dagster_dvc.assets import ALL, select_stages
from dagster_dvc.translator import DagsterDvcTranslator
from dvc_project.errors import DvcProjectError
from dvc_project.project import DvcProject


class WholeGraphJob(UnresolvedAssetJobDefinition):
    """An asset job whose assets may be partitioned differently, as those of ``dvc.yaml`` are.

    ``dagster.define_asset_job`` refuses that, because a run has one partition key at most; Dagster's own job behind
    *Materialize all* does not. A run of this job has no partition key, and a partitioned asset in it makes all its
    partitions (:meth:`dagster_dvc.resource.DvcResource.reproduce`).
    """

    def resolve(
        self,
        asset_graph: Any,
        default_executor_def: dg.ExecutorDefinition | None = None,
        resource_defs: Mapping[str, dg.ResourceDefinition] | None = None,
    ) -> dg.JobDefinition:
        return build_asset_job(
            self.name,
            asset_graph=get_asset_graph_for_job(asset_graph, self.selection, allow_different_partitions_defs=True),
            allow_different_partitions_defs=True,
            resource_defs=resource_defs,
            config=self.config,
            description=self.description,
            executor_def=default_executor_def,
        )


def build_whole_graph_job(
    project: DvcProject,
    name: str = "whole_graph",
    *,
    translator: DagsterDvcTranslator | None = None,
    select: Sequence[str] = ALL,
    exclude: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
) -> WholeGraphJob:
    """The job that materializes the selected assets of a project with their checks, in one run.

    ``config`` is its run config if a run gives none.

    Raises:
        DvcProjectError: when partitions read partitions: Dagster looks for the run's partition key then.
    """
    groups = [project.groups[name] for name in select_stages(project, select, exclude)]
    for group in groups:
        above = [up for up in project.group_upstream[group.name] if up != group.name and project.groups[up].dimensions]
        if group.dimensions and above:
            raise DvcProjectError(
                f"{project.path}: items of {group.name} read items of {', '.join(above)}; one run of Dagster cannot "
                f"make both. Leave the job {name} out, and use *Materialize all* or `dvc repro`"
            )
    translator = translator or DagsterDvcTranslator()
    return WholeGraphJob(
        name=name,
        selection=dg.AssetSelection.assets(*(translator.get_asset_key(group) for group in groups)),
        config=config,
        description="Everything of dvc.yaml, all partitions: what is out of date runs, and blocking checks hold",
    )
