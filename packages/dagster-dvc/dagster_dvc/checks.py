"""The check ``in_sync_with_dvc``: that an asset is what ``dvc.lock`` records. Partitioned assets always look fresh in
Dagster's graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

# Private: a check result names the materialization that it is about with it, and no public module exports it. Without
# it Dagster shows the result as one of an unknown version.
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData

from dagster_dvc.assets import ALL, select_stages
from dagster_dvc.mirror import EVENTS_READ
from dagster_dvc.reproduction import PROJECT
from dagster_dvc.translator import DagsterDvcTranslator
from dvc_project.project import DvcProject, Group
from dvc_project.state import ProjectState

IN_SYNC = "in_sync_with_dvc"
UNDER_WAY = "under way"


def build_in_sync_checks(
    project: DvcProject,
    *,
    select: Sequence[str] = ALL,
    exclude: Sequence[str] = (),
    translator: DagsterDvcTranslator | None = None,
) -> list[dg.AssetChecksDefinition]:
    """For each selected asset the check :data:`IN_SYNC`: its stages ran with the present code, params and inputs."""
    translator = translator or DagsterDvcTranslator()

    def build(name: str) -> dg.AssetChecksDefinition:
        def in_sync_with_dvc():  # type: ignore[no-untyped-def] # Dagster reads annotations, and cannot read text
            return in_sync(project.reload(), name)

        return dg.asset_check(
            asset=translator.get_asset_key(project.groups[name]),
            name=IN_SYNC,
            description="The recorded run had the present code, parameters and inputs, and its outs are as recorded",
        )(in_sync_with_dvc)

    return [build(name) for name in select_stages(project, select, exclude)]


def in_sync(project: DvcProject, group: str, state: ProjectState | None = None) -> dg.AssetCheckResult:
    """Whether all stages of an entry of ``dvc.yaml`` are up to date, and if not, why.

    Args:
        project: with the entry.
        group: the name of the entry.
        state: of the project, if the caller has it; else ``dvc.lock`` is read.
    """
    state = state or ProjectState(project)
    reasons: dict[str, str] = {}
    unchecked: list[str] = []
    for stage in project.groups[group].stages:
        stage_state = state.of(stage)
        if texts := [*stage_state.reasons, *(f"{name} changed" for name in sorted(stage_state.changed_upstream))]:
            reasons[stage.name] = "; ".join(texts)
        unchecked += stage_state.unchecked
    text = "; ".join(f"{name}: {text}" for name, text in reasons.items()) or "in step with dvc.lock"
    if unchecked:
        text += f"; not asked for over the network: {', '.join(dict.fromkeys(unchecked))}"
    return dg.AssetCheckResult(passed=not reasons, severity=dg.AssetCheckSeverity.WARN, description=text)


def update_in_sync(
    project: DvcProject,
    instance: dg.DagsterInstance,
    definitions: dg.RepositoryDefinition,
    translator: DagsterDvcTranslator,
) -> Iterator[str]:
    """Report the check :data:`IN_SYNC` of each asset that has a version, if its result is another one than the last.

    It changes without a run: when a file is edited, or a stage that the asset reads has run.
    """
    state = ProjectState(project)
    for group in project.groups.values():
        key = dg.AssetCheckKey(translator.get_asset_key(group), IN_SYNC)
        newest = newest_version(instance, group, translator) if key in definitions.asset_checks_defs_by_key else None
        if newest is None:
            continue
        result, last = in_sync(project, group.name, state), last_result(instance, key, project)
        if last == UNDER_WAY or (isinstance(last, dg.AssetCheckEvaluation) and _is_repeated(last, result, newest)):
            continue
        instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(
                asset_key=key.asset_key,
                check_name=key.name,
                passed=result.passed,
                target_materialization_data=newest,
                severity=result.severity,
                description=result.description,
                blocking=definitions.asset_graph.get_check_spec(key).blocking,
                metadata={PROJECT: str(project.root)},
            )
        )
        yield f"{group.name}: {IN_SYNC} {'passed' if result.passed else 'failed'}"


def newest_version(
    instance: dg.DagsterInstance, group: Group, translator: DagsterDvcTranslator
) -> AssetCheckEvaluationTargetMaterializationData | None:
    """The newest materialization of an asset, of any partition."""
    events = dg.AssetRecordsFilter(asset_key=translator.get_asset_key(group))
    records = instance.fetch_materializations(events, limit=1).records
    if not records:
        return None
    return AssetCheckEvaluationTargetMaterializationData(
        storage_id=records[0].storage_id, run_id=records[0].run_id, timestamp=records[0].timestamp
    )


def last_result(
    instance: dg.DagsterInstance, key: dg.AssetCheckKey, project: DvcProject | None = None
) -> dg.AssetCheckEvaluation | str | None:
    """The last result of a check; :data:`UNDER_WAY` if a run is about to evaluate it.

    Args:
        instance: that has the results.
        key: of the check.
        project: whose results count, if projects share the instance; None for those of any.
    """
    storage = instance.event_log_storage
    newest = storage.get_latest_asset_check_execution_by_key([key]).get(key)
    if newest is None or _is_of(newest, project):
        records = [] if newest is None else [newest]
    else:
        records = [r for r in storage.get_asset_check_execution_history(key, EVENTS_READ) if _is_of(r, project)]
    if not records or records[0].event is None:
        return None
    if records[0].status.value == "PLANNED":
        run = instance.get_run_by_id(records[0].run_id)
        return UNDER_WAY if run is not None and not run.is_finished else None
    return records[0].event.asset_check_evaluation


def _is_repeated(
    last: dg.AssetCheckEvaluation, result: dg.AssetCheckResult, version: AssetCheckEvaluationTargetMaterializationData
) -> bool:
    target = last.target_materialization_data
    unchanged = (last.passed, last.description) == (result.passed, result.description)
    return unchanged and target is not None and target.storage_id >= version.storage_id


def _is_of(record: Any, project: DvcProject | None) -> bool:
    """Whether a result (a record of an execution) was not reported by another project."""
    evaluation = record.event.asset_check_evaluation if record.event else None
    root = evaluation.metadata.get(PROJECT) if evaluation else None
    return project is None or root is None or root.value == str(project.root)
