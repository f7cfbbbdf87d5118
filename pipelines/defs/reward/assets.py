"""The reward model: adapter, then one complete folder."""

from typing import Any

import dagster as dg

from pipelines.defs.graph import PROJECT, TRANSLATOR
from pipelines.dvc import DvcResource, dvc_asset


@dvc_asset("reward_lora", project=PROJECT, translator=TRANSLATOR)
def reward_lora(context: dg.AssetExecutionContext, dvc: DvcResource) -> dg.MaterializeResult[Any]:
    """The weighted loss puts most of its weight on the decision token.

    The adapter outlives a kill: training goes on from its checkpoint.
    """
    return dvc.reproduce(context, TRANSLATOR).result()


@dvc_asset("reward_merged", project=PROJECT, translator=TRANSLATOR)
def reward_merged(context: dg.AssetExecutionContext, dvc: DvcResource) -> dg.MaterializeResult[Any]:
    """A folder that transformers and vLLM load as it is, with golden pairs that a server must score as expected."""
    return dvc.reproduce(context, TRANSLATOR).result()
