"""The served reward: known to Dagster only, for a server is no data."""

from typing import Any

import dagster as dg

from pipelines.defs.graph import DATA, ROOT


@dg.asset(deps=["reward_merged"], group_name="serving", kinds={"http"}, owners=["team:reward"])
def reward_endpoint(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
    """A server of the merged reward, under a name that carries its md5; it stays until `paco serve down`.

    Stages need none: they attach to a living server of the right name, or start a private one.
    """
    from paco_core.params import PARAMS_FILE, load
    from paco_core.serving import endpoint

    folder = DATA / "reward_merged"
    text = endpoint.up(folder, load(ROOT / PARAMS_FILE).serving, ROOT)
    context.log.info(text)
    name = endpoint.served_name(endpoint.fingerprint(folder, ROOT))
    return dg.MaterializeResult(data_version=dg.DataVersion(name), metadata={"model": name, "server": text})
