"""Check results for mirrored versions: no run made them in Dagster, so no run asked their checks.

A check is asked where the newest version of its asset was mirrored, lies in the workspace, and the check has not
answered about it yet. What is already known comes from the instance, so that a tick that was cut short is taken up by
the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

from dagster_dvc.describing import holds_recorded
from dagster_dvc.translator import DagsterDvcTranslator
from dvc_project.project import DvcProject, Group


def evaluate_mirrored(
    project: DvcProject,
    instance: dg.DagsterInstance,
    definitions: dg.RepositoryDefinition,
    translator: DagsterDvcTranslator,
) -> Iterator[str]:
    """Ask the checks that have not answered about a mirrored version and report what they say; a line for each."""
    asked: dict[dg.AssetKey, list[dg.AssetCheckKey]] = {}
    for key in definitions.asset_checks_defs_by_key:
        asked.setdefault(key.asset_key, []).append(key)
    lock = project.lock()
    for group in project.groups.values():
        keys = asked.get(translator.get_asset_key(group), [])
        newest = _newest(instance, group, translator) if keys else None
        if newest is None:
            continue
        missing = [key for key in keys if not _is_answered(instance, key, newest)]
        if missing and all(s.name in lock and holds_recorded(project, s, lock[s.name]) for s in group.stages):
            for key in missing:
                made = _evaluation(instance, definitions, key, newest)
                instance.report_runless_asset_event(made)
                yield f"{group.name}: {key.name} {'passed' if made.passed else 'failed'}"


def _newest(
    instance: dg.DagsterInstance, group: Group, translator: DagsterDvcTranslator
) -> AssetCheckEvaluationTargetMaterializationData | None:
    """The newest version, of whichever partition; None where a run made it, which asks the checks itself."""
    chosen = dg.AssetRecordsFilter(asset_key=translator.get_asset_key(group))
    records = instance.fetch_materializations(chosen, limit=1).records
    if not records or records[0].run_id:
        return None
    return AssetCheckEvaluationTargetMaterializationData(
        storage_id=records[0].storage_id, run_id=records[0].run_id, timestamp=records[0].timestamp
    )


def _is_answered(
    instance: dg.DagsterInstance, key: dg.AssetCheckKey, about: AssetCheckEvaluationTargetMaterializationData
) -> bool:
    """Whether a check answered about a version, or a run that is under way will ask it.

    Dagster shows the evaluation that was planned or reported last: one more, reported while the run goes on, would
    hide the run's.
    """
    record = instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)
    if record is None or record.event is None:
        return False
    if record.status == AssetCheckExecutionRecordStatus.PLANNED:
        run = instance.get_run_by_id(record.run_id)
        return run is not None and not run.is_finished
    made = record.event.asset_check_evaluation
    target = made.target_materialization_data if made is not None else None
    return target is not None and target.storage_id >= about.storage_id


def _evaluation(
    instance: dg.DagsterInstance,
    definitions: dg.RepositoryDefinition,
    key: dg.AssetCheckKey,
    about: AssetCheckEvaluationTargetMaterializationData,
) -> dg.AssetCheckEvaluation:
    try:
        check = definitions.asset_checks_defs_by_key[key]
        result = cast(dg.AssetCheckResult, check(dg.build_asset_check_context(instance=instance)))
    except Exception as error:  # it would fail a run's step; here it must not keep the others from being asked
        result = dg.AssetCheckResult(passed=False, description=f"the check itself failed: {error!r}")
    return dg.AssetCheckEvaluation(
        asset_key=key.asset_key,
        check_name=key.name,
        passed=result.passed,
        metadata=result.metadata,
        target_materialization_data=about,
        severity=result.severity,
        description=result.description,
        blocking=definitions.asset_graph.get_check_spec(key).blocking,
    )
