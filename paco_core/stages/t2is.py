"""Policies before and after training on unseen prompts, at every evaluation size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.data.records.records import read_prompts
from paco_core.io import paths

if TYPE_CHECKING:
    from paco_core.benchmarks.painting import Painted
    from paco_core.runtime.context import StageContext

SAMPLES, SHEET = 8, 12


def _paint(ctx: StageContext) -> list[Painted]:
    """Every text-to-image recipe, before and after training, on prompts that none of them was trained on."""
    from paco_core.benchmarks import painting
    from paco_core.grpo.prompt_split import trained_ids
    from paco_core.policies.base import load_recipe, recipes_that_edit

    params, policies = ctx.params.t2is, ctx.params.policies
    recipes = recipes_that_edit(policies, edit=False)
    folders = {name: ctx.read(paths.POLICIES / name) for name in recipes}
    trained = {idx for folder in folders.values() for idx in trained_ids(folder)}
    records = read_prompts(ctx.read(paths.PROMPTS) / "prompts.jsonl")
    unseen = painting.unseen_prompts(records, trained, params.prompts, params.seed)
    sizes = sum(len(recipe.eval_sizes) for recipe in recipes.values())
    painted: list[Painted] = []
    with ctx.progress(2 * len(unseen) * len(params.seeds) * sizes, "pictures") as progress:
        for name, recipe in recipes.items():
            painted += painting.before_and_after(
                load_recipe(recipe, policies, ctx.root),
                name,
                recipe,
                folders[name] / "adapter",
                unseen,
                seeds=params.seeds,
                steps=params.steps,
                advance=progress.advance,
            )
    return painted


def run(ctx: StageContext) -> None:
    from paco_core.benchmarks import measures, painting, t2is
    from paco_core.io.files import write_json

    params = ctx.params.t2is
    painted = _paint(ctx)
    judge, recogniser = ctx.read(paths.REWARD_MERGED), Path(str(ctx.params.annotations.model))
    gold = measures.gold(ctx.params, ctx.read(recogniser)) if ctx.params.world == "storybook" else None
    table = t2is.measure(painted, measures.set_measures(ctx.root, ctx.params, judge), gold)
    result = t2is.summarise(table, seeds=params.seeds, steps=params.steps, resamples=params.bootstrap, seed=params.seed)
    with ctx.writing(paths.T2IS) as out:
        out.mkdir()
        write_json(out / "results.json", result.as_dict())
        table.to_parquet(out / "per_prompt.parquet", index=False)
        painting.save_samples(out / "samples", painted, table, SAMPLES)
    for name, size in dict.fromkeys((p.policy, p.size) for p in painted):
        shown = [p for p in painted if (p.policy, p.size) == (name, size)]
        ctx.image(painting.side_by_side(shown, SHEET), f"{name}_before_above_after_{size}px")
    ctx.report(result.metrics())
