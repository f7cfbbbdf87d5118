"""Checks of the served reward. The check itself is a pure function of the library."""

import dagster as dg

from paco_core.io import paths
from paco_pipelines.defs.checks import as_result
from paco_pipelines.defs.graph import ROOT


@dg.asset_check(asset="reward_endpoint", description="The server answers under its name, with its golden scores")
def reward_endpoint_healthy() -> dg.AssetCheckResult:
    from paco_core.config.params import PARAMS_FILE, load
    from paco_core.serving.servers.endpoint import check_served

    return as_result(check_served(ROOT / paths.REWARD_MERGED, ROOT, load(ROOT / PARAMS_FILE).serving))
