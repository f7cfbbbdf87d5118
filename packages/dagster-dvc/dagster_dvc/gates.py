"""Blocking checks across runs.

Dagster skips the later steps of the run in which a blocking check fails, and of no other: a backfill over assets with
different partitions is several runs, and the next of them would go on with what a check has just refused.
"""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from dagster_dvc.translator import DagsterDvcTranslator
from dvc_project.project import DvcProject, Stage

_PARTITION_TAG = "dagster/partition"
_ANSWERS_READ = 100


def failed_gates(
    instance: dg.DagsterInstance, project: DvcProject, stage: Stage, translator: DagsterDvcTranslator, run_id: str
) -> list[str]:
    """Which blocking checks refused what ``stage`` reads, a line each.

    A check counts where it looked at the newest version, in the run that made it, and has not passed since. The run
    ``run_id``, in which the stage is about to start, is left to Dagster.
    """
    found: list[str] = []
    for name in project.upstream[stage.name]:
        parent = project.stages[name]
        key = translator.get_asset_key(project.groups[parent.group])
        partition = translator.partition_key(parent)
        chosen = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[partition] if partition else None)
        for record in instance.fetch_materializations(chosen, limit=1).records:
            if record.run_id and record.run_id != run_id:
                found += [
                    f"{name}: {made.check_name} failed in run {record.run_id[:8]}: {made.description}"
                    for made in _refusals(instance, key, record.run_id)
                    if not _passed_since(instance, made.asset_check_key, partition)
                ]
    return found


def _refusals(instance: dg.DagsterInstance, key: dg.AssetKey, run_id: str) -> Iterator[dg.AssetCheckEvaluation]:
    """The blocking checks of an asset that failed in a run."""
    records = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION).records
    for record in records:
        made = record.event_log_entry.asset_check_evaluation
        if made is not None and made.asset_key == key and made.blocking and _refuses(made):
            yield made


def _refuses(made: dg.AssetCheckEvaluation) -> bool:
    return not made.passed and made.severity is dg.AssetCheckSeverity.ERROR


def _passed_since(instance: dg.DagsterInstance, check: dg.AssetCheckKey, partition: str | None) -> bool:
    """Whether its last answer about the partition is a pass: a run of another one looked at other files."""
    for record in instance.event_log_storage.get_asset_check_execution_history(check, limit=_ANSWERS_READ):
        run = instance.get_run_by_id(record.run_id)
        result = record.event.asset_check_evaluation if record.event is not None else None
        if result is not None and run is not None and run.tags.get(_PARTITION_TAG) in (None, partition):
            return result.passed
    return False
