"""Benchmarks and the page that shows them."""

from typing import Any

import dagster as dg

from pipelines.defs.graph import PROJECT, TRANSLATOR
from pipelines.dvc import DvcResource, dvc_asset


@dvc_asset("consistency_rank", project=PROJECT, translator=TRANSLATOR)
def consistency_rank(context: dg.AssetExecutionContext, dvc: DvcResource) -> dg.MaterializeResult[Any]:
    """Accuracy, rank correlations and top-1 agreement, with paired intervals over prompts."""
    return dvc.reproduce(context, TRANSLATOR).result()


@dvc_asset("edit_reward", project=PROJECT, translator=TRANSLATOR)
def edit_reward(context: dg.AssetExecutionContext, dvc: DvcResource) -> dg.MaterializeResult[Any]:
    """Accuracy by dimension on two edits of one picture, macro mean over task types."""
    return dvc.reproduce(context, TRANSLATOR).result()


@dvc_asset("t2is", project=PROJECT, translator=TRANSLATOR)
def t2is(context: dg.AssetExecutionContext, dvc: DvcResource) -> dg.MaterializeResult[Any]:
    """The same prompts and seeds before and after training, at every evaluation size."""
    return dvc.reproduce(context, TRANSLATOR).result()


@dvc_asset("gedit", project=PROJECT, translator=TRANSLATOR)
def gedit(context: dg.AssetExecutionContext, dvc: DvcResource) -> dg.MaterializeResult[Any]:
    """The same instructions, pictures and seeds before and after training, at every evaluation size."""
    return dvc.reproduce(context, TRANSLATOR).result()


@dvc_asset("report", project=PROJECT, translator=TRANSLATOR)
def report(context: dg.AssetExecutionContext, dvc: DvcResource) -> dg.MaterializeResult[Any]:
    """One self-contained HTML page."""
    return dvc.reproduce(context, TRANSLATOR).result()
