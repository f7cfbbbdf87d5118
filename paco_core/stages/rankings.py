"""Ranking instances from the grids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paco_core.data.pairs.rankings import instances
from paco_core.io import paths
from paco_core.io.shards import GRID_COLUMNS, ShardReader

if TYPE_CHECKING:
    from paco_core.runtime.context import StageContext


def run(ctx: StageContext) -> None:
    table = instances(ShardReader.below(ctx.read(paths.GRIDS), require=GRID_COLUMNS).index)
    with ctx.writing(paths.RANKINGS) as out:
        out.mkdir()
        table.to_parquet(out / "instances.parquet", index=False)
    ctx.report({"instances": len(table), "prompts": table["prompt_id"].nunique()})
