"""Gates: blocking checks across runs.

Dagster skips the later steps of the run in which a blocking check fails, and of no other run. A backfill over assets
with different partitions is several runs, and the next one would use what a check has just refused.
"""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from dagster_dvc.translator import DagsterDvcTranslator
from dvc_project.project import DvcProject, ResolvedStage

_PARTITION_TAG = "dagster/partition"
_RESULTS_READ = 100


def failed_gates(
    instance: dg.DagsterInstance,
    project: DvcProject,
    stage: ResolvedStage,
    translator: DagsterDvcTranslator,
    run_id: str,
) -> list[str]:
    """The blocking checks that failed on what ``stage`` reads, one line per check.

    A check counts if it evaluated the newest version, in the run that made it, and has not passed since. The run
    ``run_id``, in which the stage is about to start, is left to Dagster.
    """
    messages: list[str] = []
    for name in project.upstream[stage.name]:
        parent = project.stages[name]
        key = translator.get_asset_key(project.groups[parent.group])
        partition = translator.partition_key(parent)
        newest = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[partition] if partition else None)
        for record in instance.fetch_materializations(newest, limit=1).records:
            if record.run_id and record.run_id != run_id:
                messages += [
                    f"{name}: {result.check_name} failed in run {record.run_id[:8]}: {result.description}"
                    for result in _failures(instance, key, record.run_id)
                    if not _passed_since(instance, result.asset_check_key, partition)
                ]
    return messages


def _failures(instance: dg.DagsterInstance, key: dg.AssetKey, run_id: str) -> Iterator[dg.AssetCheckEvaluation]:
    """The blocking checks of an asset that failed in a run."""
    records = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION).records
    for record in records:
        result = record.event_log_entry.asset_check_evaluation
        if result is None or result.asset_key != key or result.passed or not result.blocking:
            continue
        if result.severity is dg.AssetCheckSeverity.ERROR:
            yield result


def _passed_since(instance: dg.DagsterInstance, check: dg.AssetCheckKey, partition: str | None) -> bool:
    """Whether its last result on the partition is a pass: a run of another partition evaluated other files."""
    for record in instance.event_log_storage.get_asset_check_execution_history(check, limit=_RESULTS_READ):
        run = instance.get_run_by_id(record.run_id)
        result = record.event.asset_check_evaluation if record.event is not None else None
        if result is not None and run is not None and run.tags.get(_PARTITION_TAG) in (None, partition):
            return result.passed
    return False
