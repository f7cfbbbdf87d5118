"""Jobs, and work by the clock. Every schedule is off until it is switched on (UI, `dagster schedule start`)."""

# No `from __future__ import annotations`: Dagster reads the schedule function's annotations.

import dagster as dg

from dagster_dvc import build_whole_graph_job
from paco_core.config.params import PARAMS_FILE, load
from paco_core.io.paths import in_round
from paco_pipelines.defs.graph import PROJECT, ROOT, TRANSLATOR

TIME_ZONE = load(ROOT / PARAMS_FILE).time_zone
CLOCK = f"{TIME_ZONE}, by time_zone in params.yaml"
STOPPED = dg.DefaultScheduleStatus.STOPPED

reevaluation = dg.define_asset_job(
    "reevaluation",
    selection=dg.AssetSelection.assets(["nightly", "reward"], ["nightly", "policies"]),
    description="Champions measured again on fixed and fresh cases, outside DVC's cache, compared with the last time",
)
nightly_reevaluation = dg.ScheduleDefinition(
    name="nightly_reevaluation",
    job=reevaluation,
    cron_schedule="0 3 * * *",
    execution_timezone=TIME_ZONE,
    default_status=STOPPED,
    description=f"Every night at three ({CLOCK}): drift of machine, libraries or server shows as changed figures",
)

reproducibility_audit = dg.define_asset_job(
    "reproducibility_audit",
    selection=dg.AssetSelection.assets(["audit", "reproducibility"]),
    description="Cheap stages run again in a separate folder; their md5s must be those of dvc.lock",
)
weekly_audit = dg.ScheduleDefinition(
    name="weekly_audit",
    job=reproducibility_audit,
    cron_schedule="0 5 * * 0",
    execution_timezone=TIME_ZONE,
    default_status=STOPPED,
    description=f"Every Sunday at five ({CLOCK}): does the recorded graph still reproduce the recorded bytes?",
)

endpoint_health = dg.define_asset_job(
    "endpoint_health",
    selection=dg.AssetSelection.checks_for_assets("reward_endpoint"),
    description="Asks the served reward for its name and its golden pairs",
)


@dg.schedule(
    job=endpoint_health,
    cron_schedule="*/5 * * * *",
    default_status=STOPPED,
    description="Every five minutes while a server of the reward is up",
)
def endpoint_health_every_5_minutes(_context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
    from paco_core.serving.servers.registry import living

    names = living(ROOT)
    return dg.RunRequest(tags={"serving": ", ".join(names)[:63]}) if names else dg.SkipReason("no server is up")


# A round reads another one: each is a run of its own, with its number as the partition.
ROUND_ASSETS = [name for name in PROJECT.assets if in_round(name)]
# A line a stage in the terminal instead of Dagster's ten a step, which its UI shows all the same.
TERSE = {"loggers": {"console": {"config": {"log_level": "INFO"}}}}
whole_graph = build_whole_graph_job(PROJECT, translator=TRANSLATOR, exclude=ROUND_ASSETS, config=TERSE)
next_round = (
    dg.define_asset_job(
        "round",
        selection=dg.AssetSelection.assets(*ROUND_ASSETS),
        description="One round: painting, rankings, a new judge, the policy trained further, its exam",
    )
    if ROUND_ASSETS
    else None
)

JOBS = [whole_graph, reevaluation, reproducibility_audit, endpoint_health, *([next_round] if next_round else [])]
SCHEDULES = [nightly_reevaluation, weekly_audit, endpoint_health_every_5_minutes]
