"""LoRA adapter of the pairwise reward model, trained with the weighted answer loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paco_core import paths
from paco_core.shards import ShardReader

if TYPE_CHECKING:
    from paco_core.context import StageContext


def run(ctx: StageContext) -> None:
    from paco_core.dataset.panels import PanelStore
    from paco_core.reward_model.examples import read_examples
    from paco_core.reward_model.network import source
    from paco_core.reward_model.training import train

    params = ctx.params.reward
    labels = ctx.read(paths.COT_LABELS)
    panels = PanelStore(ShardReader.below(ctx.read(paths.GRIDS)))
    examples = read_examples(labels / "train.parquet", panels.panel, params.template)
    validation = read_examples(labels / "validation.parquet", panels.panel, params.template)
    with ctx.progress(len(examples) * params.epochs, "pairs") as progress:
        report = train(
            source(ctx.root, params.base),
            examples,
            validation,
            params,
            ctx.keep(paths.REWARD_LORA),
            on_metrics=ctx.tracker.metrics,
            progress=progress,
            say=ctx.say,
        )
    ctx.report(report.metrics(), pairs=len(examples))
