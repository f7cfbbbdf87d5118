"""The served reward and its check: known to Dagster only, for a server is no data."""

from typing import Any

import dagster as dg

from paco_core.io import paths
from paco_pipelines.defs.checks import as_result
from paco_pipelines.defs.graph import ROOT, maker


@dg.asset(deps=[maker(paths.REWARD_MERGED)], group_name="serving", kinds={"http"}, owners=["team:reward"])
def reward_endpoint(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
    """A server of the merged reward, under a name that carries its md5; it stays until `paco serve down`.

    Stages need none: they attach to a living server of the right name, or start a private one.
    """
    from paco_core.config.params import PARAMS_FILE, load
    from paco_core.serving.servers.endpoint import RewardEndpoint, up

    folder, serving = ROOT / paths.REWARD_MERGED, load(ROOT / PARAMS_FILE).serving
    context.log.info(up(folder, serving, ROOT))
    endpoint = RewardEndpoint.living(folder, serving, ROOT)
    if endpoint is None:
        raise dg.Failure(f"the server of {folder} ended at once; `paco serve logs` shows why")
    return dg.MaterializeResult(
        data_version=dg.DataVersion(endpoint.model),
        metadata={
            "fingerprint": endpoint.model.rpartition("@")[2],
            "model": endpoint.model,
            "engine": endpoint.engine,
            "server": dg.MetadataValue.url(endpoint.url),
            "metrics": dg.MetadataValue.url(f"{endpoint.url}/metrics"),
        },
    )


@dg.asset_check(asset="reward_endpoint", description="The server answers under its name, with its golden scores")
def reward_endpoint_healthy() -> dg.AssetCheckResult:
    from paco_core.config.params import PARAMS_FILE, load
    from paco_core.serving.servers.endpoint import check_served

    return as_result(check_served(ROOT / paths.REWARD_MERGED, ROOT, load(ROOT / PARAMS_FILE).serving))
