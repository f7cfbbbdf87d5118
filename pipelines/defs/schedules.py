"""Work by the clock. Every schedule is off until it is switched on in the UI or by `dagster schedule start`."""

from __future__ import annotations

import dagster as dg

from pipelines.dvc.resource import FORCE_TAG

# The tag makes DVC run the stages although nothing changed: it would answer "up to date" for ever.
reevaluation = dg.define_asset_job(
    "reevaluation",
    selection=dg.AssetSelection.assets("consistency_rank", "edit_reward", "t2is", "report"),
    tags={FORCE_TAG: "true"},
    description="The reward and the policies measured again, with the report, on the present machine",
)

nightly_reevaluation = dg.ScheduleDefinition(
    name="nightly_reevaluation",
    job=reevaluation,
    cron_schedule="0 3 * * *",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Every night at three: drift of the environment shows as figures that moved",
)
