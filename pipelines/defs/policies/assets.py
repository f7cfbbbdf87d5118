"""Policies: one partition a recipe of ``params.yaml``."""

from typing import Any

import dagster as dg

from pipelines.defs.graph import PROJECT, TRANSLATOR
from pipelines.dvc import DvcResource, dvc_asset


@dvc_asset("policies", project=PROJECT, translator=TRANSLATOR)
def policies(context: dg.AssetExecutionContext, dvc: DvcResource) -> dg.MaterializeResult[Any]:
    """The reward is asked over HTTP from a server of ``reward_merged``, by fingerprint.

    The adapter holds the averaged weights.
    """
    return dvc.reproduce(context, TRANSLATOR).result()
