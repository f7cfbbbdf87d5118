"""Editing policies before and after training on unseen pictures, at every evaluation size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from paco_core.benchmarks import gedit, painting
from paco_core.benchmarks.published import GEDIT
from paco_core.benchmarks.tables import write_tables
from paco_core.io import paths
from paco_core.io.files import write_json
from paco_core.tasks.edits import EDITS
from paco_core.tasks.table import recipes_of

if TYPE_CHECKING:
    from paco_core.benchmarks.cases import Cases
    from paco_core.benchmarks.painted import Painted
    from paco_core.runtime.context import StageContext

SAMPLES, SHEET = 8, 12


def _measure(ctx: StageContext) -> tuple[Cases, list[Painted], pd.DataFrame]:
    """Every editing recipe, before and after training, on editing prompts that were held back."""
    recipes = recipes_of(EDITS, ctx.params.policies)
    cases = gedit.cases(ctx.read, ctx.params, set())
    adapters = {name: ctx.read(paths.POLICIES / name) / "adapter" for name in recipes}
    with ctx.progress(cases.pictures(recipes), "pictures") as progress:
        painted = cases.painted_before_and_after(recipes, adapters, ctx.params, ctx.root, progress.advance)
    return cases, painted, gedit.measuring(ctx.root, ctx.params, ctx.read(paths.REWARD_MERGED), cases)(painted)


def run(ctx: StageContext) -> None:
    params = ctx.params.gedit
    painted: list[Painted] = []
    table, reference = pd.DataFrame(), None
    if recipes_of(EDITS, ctx.params.policies):
        cases, painted, table = _measure(ctx)
        reference = cases.reference
    else:
        ctx.say("no recipe of policies.recipes edits pictures: there is nothing to measure")
    result = gedit.summarise(
        table, seeds=params.seeds, steps=params.steps, resamples=params.bootstrap, seed=params.seed
    )
    published = [{"model": r.model, "source": r.source, "figures": dict(r.figures)} for r in GEDIT]
    with ctx.writing(paths.GEDIT) as out:
        out.mkdir()
        write_json(out / "results.json", {**result.as_dict(), "published": published})
        table.to_parquet(out / "per_prompt.parquet", index=False)
        write_tables(out, "GEdit-Bench", result.tables(GEDIT))
        if painted:
            painting.save_samples(out / "samples", painted, table, SAMPLES, reference)
    for name, size in dict.fromkeys((p.policy, p.size) for p in painted):
        shown = [p for p in painted if (p.policy, p.size) == (name, size)]
        ctx.image(painting.side_by_side(shown, SHEET, reference), f"{name}_reference_before_after_{size}px")
    ctx.tracker.artifact(ctx.root / paths.GEDIT, "tables")
    ctx.report(result.metrics())
