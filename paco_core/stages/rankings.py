"""Ranking instances from the grids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paco_core.io import paths
from paco_core.runtime.stage import Check, Cost, Stage

if TYPE_CHECKING:
    from pathlib import Path

    from paco_core.config.params import Params
    from paco_core.io.check_report import CheckReport
    from paco_core.runtime.context import StageContext


def _skipped(params: Params) -> str | None:
    return None if params.grids.seeds and params.prompts.engine != "none" else "there are no grids"


def _cost(params: Params, root: Path) -> Cost:
    from paco_core.planning import amounts

    return Cost(f"{amounts.instances(params, root)} instances")


def _are_complete(root: Path, _item: str | None) -> CheckReport:
    from paco_core.data import checks

    return checks.rankings_are_complete(root / paths.DATA)


STAGE = Stage(
    skipped=_skipped,
    cost=_cost,
    checks=(
        Check("rankings_are_complete", _are_complete, "Every instance points at panels that exist", blocking=True),
    ),
)


def run(ctx: StageContext) -> None:
    from paco_core.data.pairs.rankings import instances
    from paco_core.io.shards import GRID_COLUMNS, ShardReader

    table = instances(ShardReader.below(ctx.read(paths.GRIDS), require=GRID_COLUMNS).index)
    with ctx.writing(paths.RANKINGS) as out:
        out.mkdir()
        table.to_parquet(out / "instances.parquet", index=False)
    ctx.report({"instances": len(table), "prompts": table["prompt_id"].nunique()})
