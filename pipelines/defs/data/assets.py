"""From prompts to labelled pairs."""

from typing import Any

import dagster as dg

from pipelines.defs.graph import PROJECT, TRANSLATOR
from pipelines.dvc import DvcResource, dvc_asset


@dvc_asset("prompts", project=PROJECT, translator=TRANSLATOR)
def prompts(context: dg.AssetExecutionContext, dvc: DvcResource) -> dg.MaterializeResult[Any]:
    """Each line is one prompt in the T2IS layout: the sub-prompts of all panels and what they share."""
    return dvc.reproduce(context, TRANSLATOR).result()


@dvc_asset("diverse_prompts", project=PROJECT, translator=TRANSLATOR)
def diverse_prompts(context: dg.AssetExecutionContext, dvc: DvcResource) -> dg.MaterializeResult[Any]:
    """Near-duplicates by text embedding are left out.

    ``neighbours.parquet`` holds each prompt's nearest one before and after.
    """
    return dvc.reproduce(context, TRANSLATOR).result()


@dvc_asset("grids", project=PROJECT, translator=TRANSLATOR)
def grids(context: dg.AssetExecutionContext, dvc: DvcResource) -> dg.MaterializeResult[Any]:
    """A partition is a shard: prompt *n* lies in shard *n* modulo the number of shards.

    Pictures lie in tar files with an index.
    """
    return dvc.reproduce(context, TRANSLATOR).result()


@dvc_asset("rankings", project=PROJECT, translator=TRANSLATOR)
def rankings(context: dg.AssetExecutionContext, dvc: DvcResource) -> dg.MaterializeResult[Any]:
    """One instance: a reference panel and the four panels of another grid of the same prompt."""
    return dvc.reproduce(context, TRANSLATOR).result()


@dvc_asset("annotations", project=PROJECT, translator=TRANSLATOR)
def annotations(context: dg.AssetExecutionContext, dvc: DvcResource) -> dg.MaterializeResult[Any]:
    """The annotator is a parameter: the recogniser of the embedded world, or a file of people's rankings."""
    return dvc.reproduce(context, TRANSLATOR).result()


@dvc_asset("edit_prompts", project=PROJECT, translator=TRANSLATOR)
def edit_prompts(context: dg.AssetExecutionContext, dvc: DvcResource) -> dg.MaterializeResult[Any]:
    """Rows about one source picture, an English and a Chinese one say, always lie in the same part."""
    return dvc.reproduce(context, TRANSLATOR).result()


@dvc_asset("edits", project=PROJECT, translator=TRANSLATOR)
def edits(context: dg.AssetExecutionContext, dvc: DvcResource) -> dg.MaterializeResult[Any]:
    """The reward model learns from them what edits look like that a model painted, not only a drawing program."""
    return dvc.reproduce(context, TRANSLATOR).result()


@dvc_asset("pairs", project=PROJECT, translator=TRANSLATOR)
def pairs(context: dg.AssetExecutionContext, dvc: DvcResource) -> dg.MaterializeResult[Any]:
    """The held-out rankings of the benchmark are split off by prompt, before any pair is made."""
    return dvc.reproduce(context, TRANSLATOR).result()


@dvc_asset("cot_labels", project=PROJECT, translator=TRANSLATOR)
def cot_labels(context: dg.AssetExecutionContext, dvc: DvcResource) -> dg.MaterializeResult[Any]:
    """The answer starts with the decision; the reasons teach the model to look before it says Yes."""
    return dvc.reproduce(context, TRANSLATOR).result()
