"""Results of checks that no run of Dagster asked: about mirrored versions, and ``in_sync_with_dvc`` at any time.

A check is asked where the newest version of its asset was mirrored, lies in the workspace, and the check has not
answered about it yet. What is already known comes from the instance, so that a tick that was cut short is taken up by
the next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData
from dagster._core.storage.asset_check_execution_record import (
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
)
from dagster_shared.error import SerializableErrorInfo

from dagster_dvc.checks import IN_SYNC, in_sync
from dagster_dvc.describing import holds_recorded
from dagster_dvc.mirror import EVENTS_READ
from dagster_dvc.reproduction import PROJECT
from dagster_dvc.translator import DagsterDvcTranslator
from dvc_project.project import DvcProject, Group
from dvc_project.state import ProjectState

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
UNDER_WAY = "under way"
LONGEST = 4000  # characters of a description


def evaluate_mirrored(
    project: DvcProject,
    instance: dg.DagsterInstance,
    definitions: dg.RepositoryDefinition,
    translator: DagsterDvcTranslator,
) -> Iterator[str]:
    """Ask the checks that have not answered about a mirrored version, all in one run of this process; a line for each.

    A run, because checks have any shape: they return or yield, are async, answer for several assets, take resources.
    """
    asked: dict[dg.AssetKey, list[dg.AssetCheckKey]] = {}
    for key in definitions.asset_checks_defs_by_key:
        if key.name != IN_SYNC:
            asked.setdefault(key.asset_key, []).append(key)
    lock = project.lock()
    unanswered: dict[dg.AssetCheckKey, tuple[str, AssetCheckEvaluationTargetMaterializationData]] = {}
    for group in project.groups.values():
        keys = asked.get(translator.get_asset_key(group), [])
        newest = _newest(instance, group, translator) if keys else None
        if newest is None or newest.run_id:
            continue
        missing = [key for key in keys if not _is_answered(instance, key, newest)]
        if missing and all(s.name in lock and holds_recorded(project, s, lock[s.name]) for s in group.stages):
            unanswered |= dict.fromkeys(missing, (group.name, newest))
    answers = _ask(instance, definitions, unanswered) if unanswered else {}
    for key, (name, newest) in unanswered.items():
        made = answers[key]
        if isinstance(made, str):  # it would fail a run's step; here it must not be asked again at each tick
            made = _failed(definitions, key, newest, made)
            instance.report_runless_asset_event(made)
        yield f"{name}: {key.name} {'passed' if made.passed else 'failed'}"


def update_in_sync(
    project: DvcProject,
    instance: dg.DagsterInstance,
    definitions: dg.RepositoryDefinition,
    translator: DagsterDvcTranslator,
) -> Iterator[str]:
    """Report the check ``in_sync_with_dvc`` of each asset that has a version, where it says another thing than last.

    It turns without a run: when a file is edited, or a stage that it reads has run.
    """
    state = ProjectState(project)
    for group in project.groups.values():
        key = dg.AssetCheckKey(translator.get_asset_key(group), IN_SYNC)
        newest = _newest(instance, group, translator) if key in definitions.asset_checks_defs_by_key else None
        if newest is None:
            continue
        found, last = in_sync(project, group.name, state), _last(instance, key, project)
        if last == UNDER_WAY or (isinstance(last, dg.AssetCheckEvaluation) and _alike(last, found, newest)):
            continue
        instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(
                asset_key=key.asset_key,
                check_name=key.name,
                passed=found.passed,
                target_materialization_data=newest,
                severity=found.severity,
                description=found.description,
                blocking=definitions.asset_graph.get_check_spec(key).blocking,
                metadata={PROJECT: str(project.root)},
            )
        )
        yield f"{group.name}: {IN_SYNC} {'passed' if found.passed else 'failed'}"


def _alike(
    last: dg.AssetCheckEvaluation,
    found: dg.AssetCheckResult,
    about: AssetCheckEvaluationTargetMaterializationData,
) -> bool:
    target = last.target_materialization_data
    unchanged = (last.passed, last.description) == (found.passed, found.description)
    return unchanged and target is not None and target.storage_id >= about.storage_id


def _newest(
    instance: dg.DagsterInstance, group: Group, translator: DagsterDvcTranslator
) -> AssetCheckEvaluationTargetMaterializationData | None:
    """The newest version, of whichever partition; a run that made it asks the checks itself."""
    chosen = dg.AssetRecordsFilter(asset_key=translator.get_asset_key(group))
    records = instance.fetch_materializations(chosen, limit=1).records
    if not records:
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
    last = _last(instance, key)
    if last is None or isinstance(last, str):
        return last == UNDER_WAY
    target = last.target_materialization_data
    return target is not None and target.storage_id >= about.storage_id


def _last(
    instance: dg.DagsterInstance, key: dg.AssetCheckKey, project: DvcProject | None = None
) -> dg.AssetCheckEvaluation | str | None:
    """The last result of a check; :data:`UNDER_WAY` where a run is about to ask it.

    Args:
        project: whose results count, where projects share the instance; None = those of any.
    """
    storage = instance.event_log_storage
    newest = storage.get_latest_asset_check_execution_by_key([key]).get(key)
    if newest is None or _is_of(newest, project):
        records = [] if newest is None else [newest]
    else:
        records = [r for r in storage.get_asset_check_execution_history(key, EVENTS_READ) if _is_of(r, project)]
    if not records or records[0].event is None:
        return None
    if records[0].status == AssetCheckExecutionRecordStatus.PLANNED:
        run = instance.get_run_by_id(records[0].run_id)
        return UNDER_WAY if run is not None and not run.is_finished else None
    return records[0].event.asset_check_evaluation


def _is_of(record: AssetCheckExecutionRecord, project: DvcProject | None) -> bool:
    """Whether a result was not reported by another project."""
    evaluation = record.event.asset_check_evaluation if record.event else None
    root = evaluation.metadata.get(PROJECT) if evaluation else None
    return project is None or root is None or root.value == str(project.root)


def _ask(
    instance: dg.DagsterInstance, definitions: dg.RepositoryDefinition, keys: Collection[dg.AssetCheckKey]
) -> Mapping[dg.AssetCheckKey, dg.AssetCheckEvaluation | str]:
    """What each check says, or why it says nothing."""
    asked = {key: definitions.asset_checks_defs_by_key[key] for key in keys}
    whole = {key for check in asked.values() if not check.can_subset for key in check.check_keys}
    job = definitions.get_implicit_global_asset_job_def().get_subset(asset_check_selection={*keys, *whole})
    done = job.execute_in_process(instance=instance, run_config=QUIET, raise_on_error=False)
    found = {dg.AssetCheckKey(e.asset_key, e.check_name): e for e in done.get_asset_check_evaluations()}
    failed = {e.node_name: _cause(e.step_failure_data.error) for e in done.all_events if e.is_step_failure}
    return {key: found.get(key) or failed.get(check.node_def.name, "it gave no result") for key, check in asked.items()}


def _cause(error: SerializableErrorInfo | None) -> str:
    while error is not None and error.cause is not None:
        error = error.cause
    return "it gave no reason" if error is None else error.message.strip()


def _failed(
    definitions: dg.RepositoryDefinition,
    key: dg.AssetCheckKey,
    about: AssetCheckEvaluationTargetMaterializationData,
    reason: str,
) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        asset_key=key.asset_key,
        check_name=key.name,
        passed=False,
        target_materialization_data=about,
        severity=dg.AssetCheckSeverity.ERROR,
        description=f"the check itself failed: {reason}"[:LONGEST],
        blocking=definitions.asset_graph.get_check_spec(key).blocking,
    )
