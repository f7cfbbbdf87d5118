"""Sensors. Those that start runs or send messages are off by default; the mirrors of runs and champions only read."""

# No `from __future__ import annotations`: Dagster reads the sensor functions' annotations.

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from dagster_dvc import build_dvc_lock_sensor
from paco_pipelines.defs.graph import PROJECT, ROOT, TRANSLATOR
from paco_pipelines.defs.schedules import endpoint_health, next_round, reevaluation, reproducibility_audit, whole_graph

STOPPED = dg.DefaultSensorStatus.STOPPED


@dg.sensor(
    minimum_interval_seconds=60,
    default_status=STOPPED,
    description="Reaps expired leases and dead servers' records; sends MLflow what was kept while it was down",
)
def housekeeping(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    """Starts no run; says what it cleared away."""
    from paco_core.runtime.tracking import count_journals, send_left_over
    from paco_core.serving.servers.registry import remove_stale

    lines = remove_stale(ROOT)
    if count_journals(ROOT):
        lines.append(f"MLflow: {send_left_over(ROOT, patience_s=30).text()}")
    for line in lines:
        context.log.info(line)
    return dg.SkipReason("; ".join(lines) or "nothing to clean up")


@dg.sensor(
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Mirrors MLflow's alias champion: what `paco promote` and `paco rollback` decided in a terminal",
)
def champions(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    """Starts no run: it only reads, and only where MLflow's file has changed. A server that is down is skipped."""
    from paco_core.io.files import DataError
    from paco_core.operations.promotion.champions import Champions
    from paco_core.runtime.tracking import tracking_uri
    from paco_core.runtime.tracking.database import sqlite_file
    from paco_pipelines.defs.operations import mirror_champions

    file = sqlite_file(tracking_uri(ROOT))
    changed = None if file is None or not file.is_file() else str(file.stat().st_mtime_ns)
    if changed is not None and changed == context.cursor:
        return dg.SkipReason("MLflow recorded nothing since the last tick")
    try:
        lines = mirror_champions(context.instance, Champions.from_store(ROOT))
    except DataError as error:
        return dg.SkipReason(str(error))
    if changed is not None:
        context.update_cursor(changed)
    return dg.SkipReason("; ".join(lines) or "Dagster and the registry agree")


def answered_rounds(job: UnresolvedAssetJobDefinition) -> dg.SensorDefinition:
    """Starts the round's job where people have answered all that it asked; what is made already is not made again."""

    @dg.sensor(
        name="answered_rounds",
        job=job,
        minimum_interval_seconds=60,
        default_status=STOPPED,
        description="Goes on with a round whose people have answered everything",
    )
    def sensor(_context: dg.SensorEvaluationContext):  # type: ignore[no-untyped-def]
        from paco_core.config.params import PARAMS_FILE, load
        from paco_core.data.annotation.answer_file import FILE
        from paco_core.data.annotation.rounds import fully_answered_rounds
        from paco_core.models.content import content_of

        rounds = fully_answered_rounds(ROOT, load(ROOT / PARAMS_FILE))
        if not rounds:
            return dg.SkipReason("no round has all its answers and waits to go on")
        answers = content_of(ROOT / FILE)
        return [dg.RunRequest(run_key=f"round {number} {answers}", partition_key=number) for number in rounds]

    return sensor


@dg.run_failure_sensor(
    name="alert_on_failure",
    monitored_jobs=[whole_graph, reevaluation, reproducibility_audit, endpoint_health],
    default_status=STOPPED,
    description="Alerts people when the graph failed, a champion got worse, bytes differ, or no endpoint answers",
)
def alert_on_failure(context: dg.RunFailureSensorContext) -> None:
    from paco_core.operations.alerts import alert
    from paco_core.runtime.tracking import dagster_url

    run = context.dagster_run
    receiver = alert(ROOT, f"{run.job_name} failed", _words(context), dagster_url(run.run_id))
    context.log.info(receiver)


def _words(context: dg.RunFailureSensorContext) -> str:
    """What failed checks messages, else the run's own message."""
    records = context.instance.get_records_for_run(
        context.dagster_run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION
    ).records
    evaluations = [record.event_log_entry.asset_check_evaluation for record in records]
    messages = [
        f"{e.asset_key.to_user_string()}: {e.description}" for e in evaluations if e is not None and not e.passed
    ]
    return "\n".join(messages) or context.failure_event.message or "no message"


def sensors() -> list[dg.SensorDefinition]:
    """Runs and promotions from a terminal, or pulled with git, show up in Dagster: they are mirrored."""
    definitions = [build_dvc_lock_sensor(PROJECT, translator=TRANSLATOR), champions, housekeeping, alert_on_failure]
    return [*definitions, answered_rounds(next_round)] if next_round else definitions
