"""Text-to-image-set prompts in the T2IS layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paco_core import paths
from paco_core.dataset.prompts import make_prompts
from paco_core.dataset.records import write_prompts

if TYPE_CHECKING:
    from paco_core.context import StageContext


def run(ctx: StageContext) -> None:
    grids = ctx.params.grids
    records = make_prompts(ctx.params.prompts, (grids.height, grids.width), ctx.root)
    with ctx.writing(paths.PROMPTS) as out:
        write_prompts(out / "prompts.jsonl", records)
    ctx.report(
        {
            "prompts": len(records),
            "categories": len({r.category for r in records}),
            "subcategories": len({(r.category, r.task_name) for r in records}),
        },
        first=records[0].prompt,
    )
