"""A partitioned asset in a run without a partition key: every partition, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import dagster as dg

from dagster_dvc.mirror import Mirror
from dagster_dvc.reproduction import Outcome, Reproduction
from dagster_dvc.translator import DagsterDvcTranslator
from dvc_project.hashing import hash_json
from dvc_project.project import DvcProject, ResolvedStage

_OUTCOME_ORDER: tuple[Outcome, ...] = ("executed", "restored", "unchanged")


def reproduce_each(
    context: dg.AssetExecutionContext,
    key: dg.AssetKey,
    project: DvcProject,
    stages: Sequence[ResolvedStage],
    translator: DagsterDvcTranslator,
    reproduce: Callable[[ResolvedStage], Reproduction],
) -> Reproduction:
    """Make each partition; returns what the asset as a whole came to.

    Dagster records nothing of single partitions in such a run, so their events are written here, with the tags that
    its stale marks are read from. Dagster stores the events at the end of the step. If the step fails, the mirror of
    ``dvc.lock`` reports what was made.
    """
    reproductions = []
    for stage in stages:
        reproduction = reproduce(stage)
        reproductions.append(reproduction)
        mirror = Mirror(project, context.instance, context.job_def.asset_layer.asset_graph, translator)
        context.log_event(
            dg.AssetMaterialization(
                key,
                partition=translator.partition_key(stage),
                metadata=reproduction.result().metadata,
                tags=mirror.tags(stage),
            )
        )
    outcomes = {reproduction.outcome for reproduction in reproductions}
    return Reproduction(
        asset_key=key,
        stage=stages[0].group,
        outcome=next(outcome for outcome in _OUTCOME_ORDER if outcome in outcomes),
        md5s={path: md5 for reproduction in reproductions for path, md5 in reproduction.md5s.items()},
        data_version=hash_json([reproduction.data_version for reproduction in reproductions]),
        lock_digest=hash_json([reproduction.lock_digest for reproduction in reproductions]),
        project=str(project.root),
        seconds=sum(reproduction.seconds for reproduction in reproductions),
        metadata={
            "dvc/partitions": dg.MetadataValue.json(
                {reproduction.stage: reproduction.outcome for reproduction in reproductions}
            )
        },
    )
