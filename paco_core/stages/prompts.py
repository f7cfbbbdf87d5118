"""Text-to-image-set prompts in the T2IS layout."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from paco_core.io import paths
from paco_core.runtime.stage import Cost, Stage, library_check

if TYPE_CHECKING:
    from pathlib import Path

    from paco_core.config.params import Params
    from paco_core.runtime.context import StageContext


def _skipped(params: Params) -> str | None:
    return "prompts.engine is 'none'" if params.prompts.engine == "none" else None


def _cost(params: Params, root: Path) -> Cost:
    from paco_core.planning import amounts

    return Cost(f"{amounts.prompts(params, root)} prompts", seconds=amounts.writing_seconds(params.prompts.engine))


STAGE = Stage(
    skipped=_skipped,
    cost=_cost,
    headline=(("prompts",),),
    columns={"prompt": "the text that is painted: what all panels share, and each panel's own part"},
    checks=(library_check("paco_core.data.checks:prompts_are_valid", "Every prompt is valid, and none occurs twice"),),
)


def run(ctx: StageContext) -> None:
    from paco_core.data.prompts.prompts import make_prompts
    from paco_core.data.records.records import write_prompts

    params, grids = ctx.params.prompts, ctx.params.grids
    with ctx.progress(params.count or 0, "prompts") as progress:
        result = make_prompts(params, (grids.height, grids.width), ctx.root, progress.advance)
    with ctx.writing(paths.PROMPTS) as out:
        write_prompts(out / "prompts.jsonl", result.records)
        if result.rejected:
            result.rejected.write(out / "rejected.jsonl")
    result.rejected.print(ctx.log, paths.PROMPTS / "rejected.jsonl")
    if params.engine == "none":
        ctx.log("prompts.engine is 'none': there are no prompts")
    shares = Counter((r.category, r.task_name) for r in result.records)
    ctx.report(
        {
            "prompts": len(result.records),
            "categories": len({r.category for r in result.records}),
            "subcategories": len(shares),
            "smallest_subcategory": min(shares.values(), default=0),
            "largest_subcategory": max(shares.values(), default=0),
            **result.figures,
        },
        **({"first": result.records[0].prompt} if result.records else {}),
    )
