"""Editing policies before and after training on unseen pictures, at every evaluation size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from paco_core.benchmarks import gedit, painting, viescore
from paco_core.benchmarks.painted_before import PaintedBefore
from paco_core.benchmarks.published import GEDIT
from paco_core.benchmarks.results import jsonable
from paco_core.benchmarks.tables import write_tables
from paco_core.benchmarks.viescore_prompts import wording
from paco_core.io import paths
from paco_core.io.files import write_json, write_jsonl
from paco_core.tasks.edits import EDITS
from paco_core.tasks.table import recipes_of

if TYPE_CHECKING:
    from paco_core.benchmarks.cases import Cases
    from paco_core.benchmarks.painted import Painted
    from paco_core.config.params_benchmarks import VieScoreParams
    from paco_core.runtime.context import StageContext

SAMPLES, SHEET = 8, 12


def _measure(ctx: StageContext) -> tuple[Cases, list[Painted], pd.DataFrame]:
    """Every editing recipe, before and after training, on editing prompts that were held back."""
    recipes = recipes_of(EDITS, ctx.params.policies)
    cases = gedit.cases(ctx.read, ctx.params, set())
    adapters = {name: ctx.read(paths.POLICIES / name) / "adapter" for name in recipes}
    with ctx.progress(cases.pictures(recipes), "pictures") as progress:
        painted = cases.painted_before_and_after(recipes, adapters, ctx.params, ctx.root, progress.advance, _kept(ctx))
    return cases, painted, gedit.measuring(ctx.root, ctx.params, ctx.read(paths.REWARD_MERGED), cases)(painted)


def _kept(ctx: StageContext) -> PaintedBefore:
    return PaintedBefore(ctx.unfinished / "pictures")


def _judge(ctx: StageContext, params: VieScoreParams, cases: Cases, painted: list[Painted]) -> viescore.Judged:
    """What a judge behind an endpoint says of each edit."""
    assert cases.reference is not None, "cases of edits have reference pictures"
    words = wording(params.prompts, ctx.root)
    ctx.say(f"{viescore.estimate(painted, words)}, to {params.endpoint.model}, asked in {words.name}")
    with ctx.progress(2 * len(painted), "questions", "gedit viescore") as progress:
        return viescore.judge(painted, cases.reference, params.endpoint, words, ctx.root, progress.advance)


def run(ctx: StageContext) -> None:
    params = ctx.params.gedit
    painted: list[Painted] = []
    table, reference, judged = pd.DataFrame(), None, None
    if recipes_of(EDITS, ctx.params.policies):
        cases, painted, table = _measure(ctx)
        reference = cases.reference
        judged = None if params.viescore is None else _judge(ctx, params.viescore, cases, painted)
        table = table if judged is None else table.assign(**judged.columns)
    else:
        ctx.say("no recipe of policies.recipes edits pictures: there is nothing to measure")
    result = gedit.summarise(
        table, seeds=params.seeds, steps=params.steps, resamples=params.bootstrap, seed=params.seed
    )
    published = [{"model": r.model, "source": r.source, "figures": dict(r.figures)} for r in GEDIT]
    with ctx.writing(paths.GEDIT) as out:
        out.mkdir()
        tree, figures = {**result.as_dict(), "published": published}, None
        if judged is not None and params.viescore is not None:
            draws = {"resamples": params.bootstrap, "seed": params.seed}
            words, model = wording(params.viescore.prompts, ctx.root), params.viescore.endpoint.model
            rows = viescore.figures(table, gedit.intersection(painted), **draws)
            figures = viescore.table_of(rows, model, words)
            tree["viescore"] = {"judge": model, "wording": words.name, "rows": viescore.jsonable_rows(rows)}
            write_jsonl(out / "answers.jsonl", judged.answers)
        write_json(out / "results.json", jsonable(tree))
        table.to_parquet(out / "per_prompt.parquet", index=False)
        write_tables(out, "GEdit-Bench", result.tables(GEDIT, figures))
        if painted:
            painting.save_samples(out / "samples", painted, table, SAMPLES, reference)
    for name, size in dict.fromkeys((p.policy, p.size) for p in painted):
        shown = [p for p in painted if (p.policy, p.size) == (name, size)]
        ctx.image(painting.side_by_side(shown, SHEET, reference), f"{name}_reference_before_after_{size}px")
    ctx.tracker.artifact(ctx.root / paths.GEDIT, "tables")
    counts = {} if judged is None else {f"viescore.{name}": float(count) for name, count in judged.counts.items()}
    recipes = recipes_of(EDITS, ctx.params.policies)
    ctx.report({**result.metrics(), **counts}, {f"{name}.": paths.POLICIES / name for name in recipes})
    _kept(ctx).forget()
