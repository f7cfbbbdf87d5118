"""Yes or No with one to three reasons for every pair."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from paco_core.data.pairs.pairs import COLUMNS
from paco_core.data.pairs.reasons import explain
from paco_core.data.records.panels import PanelStore
from paco_core.io import paths
from paco_core.io.files import read_table

if TYPE_CHECKING:
    from paco_core.runtime.context import StageContext


def run(ctx: StageContext) -> None:
    source = ctx.read(paths.PAIRS)
    tables = {part: read_table(source / f"{part}.parquet", require=COLUMNS) for part in ("train", "validation")}
    panels, params = PanelStore.below(ctx.read(paths.GRIDS), source), ctx.params.cot_labels
    unit = "panels" if params.engine == "storybook" else "pairs"
    shown = [set(table["first"]) | set(table["second"]) if unit == "panels" else table for table in tables.values()]
    with ctx.progress(sum(map(len, shown)), unit) as progress:
        explained = {part: explain(table, panels, params, ctx.root, progress.advance) for part, table in tables.items()}
    with ctx.writing(paths.COT_LABELS) as out:
        out.mkdir()
        for part, found in explained.items():
            found.table.to_parquet(out / f"{part}.parquet", index=False)
            found.failed.to_parquet(out / f"{part}_failed.parquet", index=False)
    ctx.report(
        {f"{part}_answers": len(found.table) for part, found in explained.items()}
        | {f"{part}_failed": len(found.failed) for part, found in explained.items()}
        | sum((found.figures for found in explained.values()), Counter[str]()),
        **{f"failed_{cause}": n for cause, n in sum((e.causes for e in explained.values()), Counter[str]()).items()},
    )
