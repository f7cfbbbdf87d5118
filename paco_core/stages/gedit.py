"""Editing policies before and after training on unseen pictures, at every evaluation size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.io import paths
from paco_core.io.files import write_json

if TYPE_CHECKING:
    from paco_core.benchmarks.painting import Painted
    from paco_core.data.records.edit_records import EditRecord
    from paco_core.grpo.scoring import Reference
    from paco_core.runtime.context import StageContext

SAMPLES, SHEET = 8, 12


def _unseen(ctx: StageContext) -> tuple[list[EditRecord], Reference]:
    """Editing prompts that were held back from training, and their pictures."""
    from paco_core.benchmarks import gedit
    from paco_core.data.records.edit_records import read_edit_prompts

    records, reference = read_edit_prompts(ctx.read(paths.EDIT_PROMPTS))
    return gedit.unseen(records, ctx.params.gedit.prompts, ctx.params.gedit.seed), reference


def _paint(ctx: StageContext, records: list[EditRecord], reference: Reference) -> list[Painted]:
    """Every editing recipe, before and after training."""
    from paco_core.benchmarks import painting
    from paco_core.policies.base import load_recipe, recipes_that_edit
    from paco_core.policies.encodings import cache_folder

    params, policies = ctx.params.gedit, ctx.params.policies
    recipes = recipes_that_edit(policies)
    sizes = sum(len(recipe.eval_sizes) for recipe in recipes.values())
    painted: list[Painted] = []
    with ctx.progress(2 * len(records) * len(params.seeds) * sizes, "pictures") as progress:
        for name, recipe in recipes.items():
            painted += painting.before_and_after(
                load_recipe(recipe, policies, ctx.root, cache=cache_folder(ctx.root)),
                name,
                recipe,
                ctx.read(paths.POLICIES / name) / "adapter",
                records,
                seeds=params.seeds,
                steps=params.steps,
                reference=reference,
                advance=progress.advance,
            )
    return painted


def run(ctx: StageContext) -> None:
    import pandas as pd

    from paco_core.benchmarks import edit_measures, gedit, painting
    from paco_core.benchmarks.published import GEDIT
    from paco_core.benchmarks.tables import write_tables

    params = ctx.params.gedit
    records, reference = _unseen(ctx)
    painted = _paint(ctx, records, reference)
    if painted:
        answers = edit_measures.answers(ctx.params, ctx.read(paths.REWARD_MERGED))
        gold = edit_measures.gold(ctx.params, ctx.read(Path(str(ctx.params.annotations.model))))
        table = gedit.measure(painted, reference, answers, gold)
    else:
        ctx.say("no recipe of policies.recipes edits pictures: there is nothing to measure")
        table = pd.DataFrame()
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
