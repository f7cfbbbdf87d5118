"""Policies before and after training on unseen prompts, at every evaluation size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paco_core.benchmarks import painting, paired_changes, t2is
from paco_core.benchmarks.painted import SEPARATELY
from paco_core.benchmarks.painted_before import PaintedBefore
from paco_core.benchmarks.t2is_bench.sets import write_painted
from paco_core.grpo.prompt_split import trained_ids
from paco_core.io import paths
from paco_core.io.files import write_json
from paco_core.tasks.sets import SETS
from paco_core.tasks.table import recipes_of

if TYPE_CHECKING:
    from paco_core.runtime.context import StageContext

SAMPLES, SHEET = 8, 12


def run(ctx: StageContext) -> None:
    params, recipes = ctx.params.t2is, recipes_of(SETS, ctx.params.policies)
    if not recipes:
        return ctx.skip(paths.T2IS, "no recipe of policies.recipes paints sets")
    folders = {name: ctx.read(paths.POLICIES / name) for name in recipes}
    cases = t2is.cases(ctx.read, ctx.params, {idx for folder in folders.values() for idx in trained_ids(folder)})
    kept = PaintedBefore(ctx.unfinished / "pictures")
    with ctx.progress(cases.pictures(recipes), "pictures") as progress:
        adapters = {name: folder / "adapter" for name, folder in folders.items()}
        painted = cases.painted_before_and_after(recipes, adapters, ctx.params, ctx.root, progress.advance, kept)
    table = t2is.measuring(ctx.root, ctx.params, ctx.read(paths.REWARD_MERGED), cases)(painted)
    paired, rows = [p for p in painted if p.when != SEPARATELY], table[table["when"] != SEPARATELY]
    result = paired_changes.summarise(
        rows,
        seeds=params.seeds,
        steps=params.steps,
        resamples=params.bootstrap,
        seed=params.seed,
    )
    with ctx.writing(paths.T2IS) as out:
        out.mkdir()
        write_json(out / "results.json", result.as_dict())
        table.to_parquet(out / "per_prompt.parquet", index=False)
        painting.save_samples(out / "samples", paired, rows, SAMPLES)
        write_painted(out, painted)
    for name, size in dict.fromkeys((p.policy, p.size) for p in paired):
        shown = [p for p in paired if (p.policy, p.size) == (name, size)]
        ctx.image(painting.side_by_side(shown, SHEET), f"{name}_before_above_after_{size}px")
    ctx.report(result.metrics(), {f"{name}.": paths.POLICIES / name for name in recipes})
    kept.forget()
