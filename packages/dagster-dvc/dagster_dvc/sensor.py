"""Sensor: mirrors ``dvc.lock``: runs from a terminal, or pulled with git, show up in Dagster."""

import dagster as dg

from dagster_dvc.checks import update_in_sync
from dagster_dvc.mirror import Mirror
from dagster_dvc.mirrored_checks import evaluate_mirrored
from dagster_dvc.translator import DagsterDvcTranslator
from dvc_project.errors import DvcProjectError
from dvc_project.project import DvcProject

# No `from __future__ import annotations`: Dagster reads the sensor function's annotations.


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
        lines = mirror_lock(project.reload(), context.instance, repository, translator)
        for line in lines:
            context.log.info(line)
        return dg.SkipReason("; ".join(lines) if lines else "Dagster and dvc.lock agree")

    return mirror
