"""Instructions and the pictures they are about: what editing policies are trained on and watched on."""

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
    return "edit_prompts.source is 'none'" if params.edit_prompts.source == "none" else None


def _cost(params: Params, _root: Path) -> Cost:
    return Cost(f"{params.edit_prompts.count or 'all'} editing prompts")


STAGE = Stage(
    skipped=_skipped,
    cost=_cost,
    headline=(("train",), ("unseen",)),
    columns={
        "prompt": "the instruction: what to do with the picture",
        "reference": "id of the picture that it is about, or a list of ids",
    },
    checks=(
        library_check(
            "paco_core.data.checks:edit_prompts_are_held_apart",
            "Every edit has its picture; none is both trained on and unseen",
        ),
    ),
)


def run(ctx: StageContext) -> None:
    from paco_core.data.prompts.edit_prompts import make_edit_prompts
    from paco_core.data.records.edit_records import of_part

    prompts = make_edit_prompts(ctx.params.edit_prompts, ctx.root)
    if ctx.params.edit_prompts.source == "none":
        ctx.log("edit_prompts.source is 'none': there are no editing prompts")
    prompts.rejected.print(ctx.log)
    with ctx.writing(paths.EDIT_PROMPTS) as out:
        out.mkdir()
        prompts.write(out)
    parts = {part: of_part(prompts.records, part) for part in ("train", "unseen")}
    ctx.report(
        {
            **{name: len(records) for name, records in parts.items()},
            "pictures": len(prompts.pictures),
            "pictures_in_both": len(
                set.intersection(*({n for r in part for n in r.references} for part in parts.values()))
            ),
            **{f"task.{task}": n for task, n in sorted(Counter(r.task_name for r in prompts.records).items())},
            **{f"language.{name}": n for name, n in sorted(Counter(r.language for r in prompts.records).items())},
            **prompts.rejected.figures(),
        }
    )
