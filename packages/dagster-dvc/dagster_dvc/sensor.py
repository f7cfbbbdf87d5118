"""Sensor: mirrors ``dvc.lock``: runs from a terminal, or pulled with git, show up in Dagster."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import dagster as dg

from dagster_dvc.checks import IN_SYNC, UNDER_WAY, last_result, newest_version, update_in_sync
from dagster_dvc.describing import holds_recorded
from dagster_dvc.mirror import Mirror
from dagster_dvc.translator import DagsterDvcTranslator
from dvc_project.errors import DvcProjectError
from dvc_project.project import DvcProject

# No `from __future__ import annotations`: Dagster reads the sensor function's annotations.

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
LONGEST = 4000  # characters of a description


def mirror_lock(
    project: DvcProject,
    instance: dg.DagsterInstance,
    definitions: dg.RepositoryDefinition,
    translator: DagsterDvcTranslator | None = None,
) -> list[str]:
    """Report what ``dvc.lock`` records and Dagster does not know, with the results of checks; a line for each."""
    translator = translator or DagsterDvcTranslator()
    return [
        *Mirror(project, instance, definitions.asset_graph, translator).tick(),
        *update_in_sync(project, instance, definitions, translator),
        *evaluate_mirrored(project, instance, definitions, translator),
    ]


def build_dvc_lock_sensor(
    project: DvcProject,
    *,
    translator: DagsterDvcTranslator | None = None,
    name: str = "dvc_lock",
    minimum_interval_seconds: int = 30,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
) -> dg.SensorDefinition:
    """A sensor that reports what ran outside Dagster, and what ``dvc status`` calls changed.

    It reports runless materialisations of what ``dvc.lock`` newly records, producers first, with the results of their
    checks, and keeps ``in_sync_with_dvc`` up to date. It starts no stage: it only reads, so it is on by default.
    ``dvc.yaml`` and the parameters are read again at each tick.
    """

    @dg.sensor(
        name=name,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description="Mirrors dvc.lock: stages that ran outside Dagster, and what dvc status calls changed",
    )
    def mirror(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        repository = context.repository_def
        if repository is None:
            raise DvcProjectError("the sensor needs the code location that it belongs to")
        present = project.reload()
        lines = mirror_lock(present, context.instance, repository, translator)
        lines += loaded_before(present, repository, translator or DagsterDvcTranslator())
        for line in lines:
            context.log.info(line)
        return dg.SkipReason("; ".join(lines) if lines else "Dagster and dvc.lock agree")

    return mirror


def loaded_before(
    project: DvcProject, definitions: dg.RepositoryDefinition, translator: DagsterDvcTranslator
) -> list[str]:
    """A line about the assets whose code or parameters have changed since the code location was loaded; else none.

    Dagster compares the code version of a run with that of the loaded location, which it computes only once. So an
    asset that ran in a terminal since then is "Unsynced" until the location is reloaded.
    """
    graph = definitions.asset_graph
    changed = [
        group.name
        for group in project.groups.values()
        if (key := translator.get_asset_key(group)) in graph.get_all_asset_keys()
        and graph.get(key).code_version != project.code_version(group.name)
    ]
    if not changed:
        return []
    return [f"{', '.join(changed)}: changed since the code location was loaded; reload it to update Dagster's marks"]


def evaluate_mirrored(
    project: DvcProject,
    instance: dg.DagsterInstance,
    definitions: dg.RepositoryDefinition,
    translator: DagsterDvcTranslator,
) -> Iterator[str]:
    """Evaluate the checks of mirrored versions, which no run of Dagster evaluated; a line for each.

    A check is evaluated if the newest version of its asset was mirrored and is in the workspace, and if the check has
    no result for it yet. Results are read from the instance, so the next tick resumes a tick that was cut short.
    One run in this process evaluates them, because checks have any shape: they return or yield, are async, belong to
    several assets, take resources.
    """
    checks: dict[dg.AssetKey, list[dg.AssetCheckKey]] = {}
    for key in definitions.asset_checks_defs_by_key:
        if key.name != IN_SYNC:
            checks.setdefault(key.asset_key, []).append(key)
    lock = project.lock()
    due: dict[dg.AssetCheckKey, tuple[str, Any]] = {}
    for group in project.groups.values():
        keys = checks.get(translator.get_asset_key(group), [])
        newest = newest_version(instance, group, translator) if keys else None
        if newest is None or newest.run_id:  # the run that made it evaluates the checks
            continue
        missing = [key for key in keys if not _has_result(instance, key, newest)]
        if missing and all(s.name in lock and holds_recorded(project, s, lock[s.name]) for s in group.stages):
            due |= dict.fromkeys(missing, (group.name, newest))
    results = _evaluate(instance, definitions, due) if due else {}
    for key, (name, newest) in due.items():
        result = results[key]
        if isinstance(result, str):  # it would fail a run's step; here it must not be evaluated again at each tick
            result = _failed(definitions, key, newest, result)
            instance.report_runless_asset_event(result)
        yield f"{name}: {key.name} {'passed' if result.passed else 'failed'}"


def _has_result(instance: dg.DagsterInstance, key: dg.AssetCheckKey, version: Any) -> bool:
    """Whether a check has a result for a version, or a run that is under way will evaluate it.

    Dagster shows the result that was planned or reported last: one more, reported while the run goes on, would
    hide the run's.
    """
    last = last_result(instance, key)
    if last is None or isinstance(last, str):
        return last == UNDER_WAY
    target = last.target_materialization_data
    return target is not None and target.storage_id >= version.storage_id


def _evaluate(
    instance: dg.DagsterInstance, definitions: dg.RepositoryDefinition, keys: Collection[dg.AssetCheckKey]
) -> Mapping[dg.AssetCheckKey, dg.AssetCheckEvaluation | str]:
    """The result of each check, or why it has none."""
    checks = {key: definitions.asset_checks_defs_by_key[key] for key in keys}
    unsplit = {key for check in checks.values() if not check.can_subset for key in check.check_keys}
    job = definitions.get_implicit_global_asset_job_def().get_subset(asset_check_selection={*keys, *unsplit})
    result = job.execute_in_process(instance=instance, run_config=QUIET, raise_on_error=False)
    results = {dg.AssetCheckKey(e.asset_key, e.check_name): e for e in result.get_asset_check_evaluations()}
    failed = {e.node_name: _cause(e.step_failure_data.error) for e in result.all_events if e.is_step_failure}
    return {
        key: results.get(key) or failed.get(check.node_def.name, "it gave no result") for key, check in checks.items()
    }


def _cause(error: Any) -> str:
    """The message of the innermost error of a failed step."""
    while error is not None and error.cause is not None:
        error = error.cause
    return "it gave no reason" if error is None else str(error.message).strip()


def _failed(
    definitions: dg.RepositoryDefinition, key: dg.AssetCheckKey, version: Any, reason: str
) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        asset_key=key.asset_key,
        check_name=key.name,
        passed=False,
        target_materialization_data=version,
        severity=dg.AssetCheckSeverity.ERROR,
        description=f"the check itself failed: {reason}"[:LONGEST],
        blocking=definitions.asset_graph.get_check_spec(key).blocking,
    )
