"""Instructions and the pictures they are about: what editing policies are trained on and watched on."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from paco_core.data.prompts.edit_prompts import edit_prompts
from paco_core.data.records.edit_records import of_part
from paco_core.io import paths

if TYPE_CHECKING:
    from paco_core.runtime.context import StageContext


def run(ctx: StageContext) -> None:
    found = edit_prompts(ctx.params.edit_prompts, ctx.root)
    if ctx.params.edit_prompts.source == "none":
        ctx.say("edit_prompts.source is 'none': there are no editing prompts")
    found.rejected.print(ctx.say)
    with ctx.writing(paths.EDIT_PROMPTS) as out:
        out.mkdir()
        found.write(out)
    parts = {part: of_part(found.records, part) for part in ("train", "unseen")}
    ctx.report(
        {
            **{name: len(records) for name, records in parts.items()},
            "pictures": len(found.pictures),
            "pictures_in_both": len({r.reference for r in parts["train"]} & {r.reference for r in parts["unseen"]}),
            **{f"task.{task}": n for task, n in sorted(Counter(r.task_name for r in found.records).items())},
            **{f"language.{name}": n for name, n in sorted(Counter(r.language for r in found.records).items())},
            **found.rejected.figures(),
        }
    )
