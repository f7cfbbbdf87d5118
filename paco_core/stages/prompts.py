"""Text-to-image-set prompts in the T2IS layout."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from paco_core.data.prompts.prompts import make_prompts
from paco_core.data.records.records import write_prompts
from paco_core.io import paths

if TYPE_CHECKING:
    from paco_core.runtime.context import StageContext


def run(ctx: StageContext) -> None:
    params, grids = ctx.params.prompts, ctx.params.grids
    with ctx.progress(params.count or 0, "prompts") as progress:
        made = make_prompts(params, (grids.height, grids.width), ctx.root, progress.advance)
    with ctx.writing(paths.PROMPTS) as out:
        write_prompts(out / "prompts.jsonl", made.records)
        if made.rejected:
            made.rejected.write(out / "rejected.jsonl")
    made.rejected.print(ctx.say, paths.PROMPTS / "rejected.jsonl")
    if params.engine == "none":
        ctx.say("prompts.engine is 'none': there are no prompts")
    shares = Counter((r.category, r.task_name) for r in made.records)
    ctx.report(
        {
            "prompts": len(made.records),
            "categories": len({r.category for r in made.records}),
            "subcategories": len(shares),
            "smallest_subcategory": min(shares.values(), default=0),
            "largest_subcategory": max(shares.values(), default=0),
            **made.figures,
        },
        **({"first": made.records[0].prompt} if made.records else {}),
    )
