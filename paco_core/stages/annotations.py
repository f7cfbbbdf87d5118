"""Each instance's candidates ranked by consistency with the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paco_core import paths
from paco_core.dataset.annotation import agreement, annotate
from paco_core.dataset.panels import PanelStore

if TYPE_CHECKING:
    from paco_core.context import StageContext


def run(ctx: StageContext) -> None:
    import pandas as pd

    instances = pd.read_parquet(ctx.read(paths.RANKINGS) / "instances.parquet")
    panels = PanelStore.below(ctx.read(paths.GRIDS))
    total = instances["reference"].nunique()
    with ctx.progress(total, "panels") as progress:
        table = annotate(instances, panels, ctx.params.annotations, ctx.root, progress.advance)
    with ctx.writing(paths.ANNOTATIONS) as out:
        out.mkdir()
        table.to_parquet(out / "rankings.parquet", index=False)
    ctx.report(
        {
            "rankings": len(table),
            "annotators": table["annotator"].nunique(),
            "unranked_instances": len(instances) - table["instance_id"].nunique(),
            "tied_share": float(table["tied"].mean()),
            "agreement": agreement(table),
        }
    )
