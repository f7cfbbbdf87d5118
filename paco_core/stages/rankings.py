"""Ranking instances from the grids."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from paco_core.io import paths
from paco_core.runtime.stage import Cost, Stage, library_check

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from paco_core.config.params import Params
    from paco_core.runtime.context import StageContext


def _skipped(params: Params) -> str | None:
    return None if params.grids.seeds and params.prompts.engine != "none" else "there are no grids"


def _cost(params: Params, root: Path) -> Cost:
    from paco_core.planning import amounts

    return Cost(f"{amounts.instances(params, root)} instances")


STAGE = Stage(
    skipped=_skipped,
    cost=_cost,
    checks=(
        library_check("paco_core.data.checks:rankings_are_complete", "Every instance points at panels that exist"),
    ),
)


def run(ctx: StageContext) -> None:
    from paco_core.data.annotation.rankings import build_instances
    from paco_core.io.shards import GRID_COLUMNS, ShardReader

    if ctx.round is not None:
        return _of_round(ctx)
    table = build_instances(ShardReader.below(ctx.read(paths.GRIDS), require=GRID_COLUMNS).index)
    _write(ctx, table)


def _of_round(ctx: StageContext) -> None:
    """The pictures of this round are ranked among themselves; what was to be ranked before stays as it was."""
    import pandas as pd

    from paco_core.data.annotation.rankings import COLUMNS, build_instances
    from paco_core.data.annotation.rounds import select_instances
    from paco_core.io.files import read_table
    from paco_core.io.shards import GRID_COLUMNS, ShardReader

    earlier = read_table(ctx.read_before(paths.RANKINGS) / "instances.parquet", require=COLUMNS)
    image_index = ShardReader.below(ctx.read_before(paths.GRIDS), require=GRID_COLUMNS).index
    index = ShardReader.below(ctx.read(paths.GRIDS), require=GRID_COLUMNS).index
    new = select_instances(
        build_instances(index[~index.index.isin(image_index.index)]), ctx.params.rounds.ask, partial(_doubts, ctx)
    )
    _write(ctx, pd.concat([earlier, new], ignore_index=True), asked=len(new))


def _doubts(ctx: StageContext, table: pd.DataFrame) -> list[float]:
    """Where the judge of the round before is sure, or of one mind with the held-out judge, as ``rounds.ask`` says."""
    from paco_core.data.annotation.rounds import certainty, judge_agreement
    from paco_core.data.records.panels import PanelStore
    from paco_core.data.records.records import read_prompts
    from paco_core.reward_model.instructions import render_instruction
    from paco_core.reward_model.scorer import Scorer
    from paco_core.reward_model.yes_probability import PairQuery

    reward, panel = ctx.params.reward, PanelStore.below(ctx.read(paths.GRIDS)).panel
    themes = {record.idx: record.theme for record in read_prompts(ctx.read(paths.DIVERSE_PROMPTS) / "prompts.jsonl")}
    queries = [
        PairQuery(panel(reference), panel(candidate), render_instruction(reward.template, theme=themes[prompt]))
        for prompt, reference, candidates in table[["prompt_id", "reference", "candidates"]].itertuples(index=False)
        for candidate in candidates
    ]
    judges: list[str | Path] = [ctx.read_before(paths.REWARD_MERGED)]
    if ctx.params.rounds.ask.choose == "disagree":
        recipe = ctx.params.policies.recipe(ctx.params.rounds.recipe)
        judges.append(ctx.model(str(recipe.held_out_judge)))
    scores = []
    with ctx.progress(len(judges) * len(queries), "queries") as progress:
        for judge in judges:
            values = iter(Scorer.configured(judge, reward).score(queries, progress.advance))
            scores.append([[next(values).value for _ in candidates] for candidates in table["candidates"]])
    return judge_agreement(*scores) if len(scores) > 1 else certainty(scores[0])


def _write(ctx: StageContext, table: pd.DataFrame, **figures: float) -> None:
    with ctx.writing(paths.RANKINGS) as out:
        out.mkdir()
        table.to_parquet(out / "instances.parquet", index=False)
    ctx.report({"instances": len(table), "prompts": table["prompt_id"].nunique(), **figures})
