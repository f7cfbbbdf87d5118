"""Held-out rankings: the trained reward against its base, CLIP and chance; in a round against the judge before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.io import paths
from paco_core.runtime.preview import Table
from paco_core.runtime.stage import BASE_GB, Cost, Stage, library_check

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paco_core.benchmarks import rankings as bench
    from paco_core.benchmarks.characters import CharacterResult
    from paco_core.config.params import Params
    from paco_core.data.pairs.characters import HeldOutCase
    from paco_core.io.rejected import Rejected
    from paco_core.runtime.context import StageContext
    from paco_core.runtime.preview import Preview


NOTHING_HELD_OUT = "no ranking and no character is held out, and consistency_rank.source is null"


def _skipped(params: Params) -> str | None:
    ranked = params.grids.seeds and params.prompts.engine != "none"
    if ranked or params.consistency_rank.source is not None or params.pairs.characters.used:
        return None
    return NOTHING_HELD_OUT


def _cost(params: Params, root: Path) -> Cost:
    from paco_core.planning import amounts
    from paco_core.planning.models import model_gb

    most = params.consistency_rank.max_instances or amounts.instances(params, root)
    characters = amounts.held_out_character_pairs(params)
    about = f", {characters} pairs of characters" if characters else ""
    return Cost(
        f"at most {most} instances, {most * 4} pairs by each model{about}",
        BASE_GB + 2 * model_gb(root, params.reward.base),
        amounts.seconds(params, (most * 4 + characters) * 2 * amounts.CPU_SECONDS["score_pair"]),
        params.reward.device,
    )


def _preview(data: Path, _item: str) -> dict[str, Preview]:
    """The instances that the trained reward ordered worst."""
    from paco_core.io.files import read_table

    file = data / paths.CONSISTENCY_RANK.name / "per_instance.parquet"
    if not file.is_file():
        return {}  # only characters are held out
    rows = read_table(file)
    rows = rows[rows["method"] == "reward"].sort_values(["accuracy", "tau"], kind="stable")
    return {"worst_rankings": Table(rows[["instance_id", "prompt_id", "accuracy", "tau", "scores", "ranking"]])}


STAGE = Stage(
    device=lambda params: params.reward.device,
    skipped=_skipped,
    cost=_cost,
    headline=(("reward.accuracy",), ("base.accuracy",), ("reward_minus_base.accuracy",), ("instances",)),
    preview=_preview,
    checks=(
        library_check(
            "paco_core.benchmarks.checks:reward_ranks_better_than_base",
            "The trained reward beats its base on held-out rankings",
            paths.metrics_file(paths.CONSISTENCY_RANK.name),
        ),
        library_check(
            "paco_core.benchmarks.checks:every_ranking_was_scored",
            "No judge failed on any instance",
            paths.metrics_file(paths.CONSISTENCY_RANK.name),
        ),
    ),
    compared=True,
    tables=True,
)


def run(ctx: StageContext) -> None:
    if ctx.round is not None:
        return _of_round(ctx)
    params, reward = ctx.params.consistency_rank, ctx.params.reward
    template = params.template or reward.template

    from paco_core.benchmarks.published import CONSISTENCY_RANK
    from paco_core.benchmarks.tables import write_result_tables
    from paco_core.config.params_benchmarks import BASE, REWARD
    from paco_core.config.references import model_at
    from paco_core.data.pairs.characters import read_held_out_cases
    from paco_core.io.answer import to_jsonable
    from paco_core.io.files import write_json

    cases = read_held_out_cases(ctx.read(paths.PAIRS))
    is_ranked = params.source is not None or not _none_held_out(ctx)
    if not is_ranked and not cases:
        return ctx.skip(paths.CONSISTENCY_RANK, NOTHING_HELD_OUT)
    models: dict[str, tuple[str, str | Path]] = {
        REWARD: (f"PaCo-Reward, {reward.weights or 'trained here'}", ctx.read(paths.REWARD_MERGED)),
        BASE: ("Its base, untrained", model_at(ctx.root, reward.base, "reward.base")),
    }
    result, rejected = _rankings(ctx, models, template) if is_ranked else (None, None)
    characters = _characters(ctx, models, cases) if cases else None
    published = [row.as_dict() for row in CONSISTENCY_RANK]
    tree = {**(result.as_dict() if result else {}), "template": template, "published": published}
    with ctx.writing(paths.CONSISTENCY_RANK) as out:
        out.mkdir()
        write_json(out / "results.json", tree | ({"characters": to_jsonable(characters.rows)} if characters else {}))
        if result:
            result.table().to_parquet(out / "per_instance.parquet", index=False)
        tables = result.tables(CONSISTENCY_RANK, template) if result else []
        write_result_tables(out, "ConsistencyRank", [*tables, *([characters.table()] if characters else [])])
    ctx.tracker.artifact(ctx.root / paths.CONSISTENCY_RANK, "tables")
    metrics = {**(result.metrics() if result else {}), **(characters.metrics() if characters else {})}
    if rejected is not None:
        rejected.print(ctx.log)
        metrics["rejected"] = len(rejected)
    ctx.report(metrics, {"reward.": paths.REWARD_MERGED})


def _rankings(
    ctx: StageContext, models: Mapping[str, tuple[str, str | Path]], template: str
) -> tuple[bench.RankingResult, Rejected]:
    """The models, CLIP and chance on held-out rankings, and the rows that are left out."""
    from paco_core.benchmarks import rankings as bench
    from paco_core.benchmarks.public_files import read_scores
    from paco_core.config.params_benchmarks import CLIP_I, RANDOM, REWARD
    from paco_core.models.open_clip import OpenClip

    params = ctx.params.consistency_rank
    rankings, panels, rejected = _held_out(ctx)
    scores = _score(ctx, models, rankings, panels, template)
    if params.clip is not None:
        clip = OpenClip(ctx.model(params.clip), ctx.params.reward.device)
        scores[CLIP_I] = bench.score_embeddings("CLIP-I, cosine of two pictures", clip, rankings, panels)
    for label, file in params.scored_elsewhere.items():
        scores[label] = read_scores(label, ctx.read(Path(file)), rankings, rejected)
    scores[RANDOM] = bench.random_order("Random order", rankings)
    pairs = [(REWARD, name) for name in scores if name != REWARD]
    return bench.evaluate_rankings(rankings, scores, pairs, resamples=params.bootstrap, seed=params.seed), rejected


def _characters(
    ctx: StageContext, models: Mapping[str, tuple[str, str | Path]], cases: Sequence[HeldOutCase]
) -> CharacterResult:
    """The models and CLIP on held-out cases of characters."""
    from paco_core.benchmarks import characters as bench
    from paco_core.config.params_benchmarks import CLIP_I
    from paco_core.data.records.panels import PanelStore
    from paco_core.models.open_clip import OpenClip
    from paco_core.reward_model.scorer import Scorer

    params, panels = ctx.params.consistency_rank, PanelStore.below(ctx.read(paths.PAIRS))
    scores = {}
    with ctx.progress(len(models) * bench.count_case_queries(cases), "pairs") as progress:
        for name, (label, model) in models.items():
            scorer = Scorer.configured(model, ctx.params.reward)
            scores[name] = bench.score_cases(label, scorer, cases, panels, progress.advance)
            del scorer  # before the next one is loaded
    if params.clip is not None:
        clip = OpenClip(ctx.model(params.clip), ctx.params.reward.device)
        scores[CLIP_I] = bench.score_case_embeddings("CLIP-I, cosine of two pictures", clip, cases, panels)
    return bench.evaluate_cases(cases, scores, resamples=params.bootstrap, seed=params.seed)


def _of_round(ctx: StageContext) -> None:
    """The round's judge and the one before on held-out rankings of the round's own pictures.

    Of these only what was drawn at random: what a judge chose to ask about is harder for it than what it meets.
    """
    from paco_core.benchmarks import rankings as bench
    from paco_core.benchmarks.tables import write_result_tables
    from paco_core.config.params_benchmarks import BEFORE, RANDOM, REWARD
    from paco_core.data.annotation.rounds import randomly_selected_ids
    from paco_core.data.records.panels import PanelStore
    from paco_core.io.answer import to_jsonable
    from paco_core.io.files import read_table, write_json

    params, reward = ctx.params.consistency_rank, ctx.params.reward
    template = params.template or reward.template
    file = ctx.read(paths.PAIRS) / "benchmark.parquet"
    before, now = (
        read_table(folder / "instances.parquet")
        for folder in (ctx.read_before(paths.RANKINGS), ctx.read(paths.RANKINGS))
    )
    held_out = read_table(file, require=bench.COLUMNS)
    held_out = held_out[held_out["instance_id"].isin(randomly_selected_ids(now, before))]
    if held_out.empty:
        reason = "no ranking that was drawn at random is held out; raise rounds.ask.count, or its random_share"
        return ctx.skip(paths.CONSISTENCY_RANK, reason)
    rankings = bench.sample_rankings(bench.parse_rankings(held_out, file), params.max_instances, params.seed)
    panels = PanelStore.below(ctx.read(paths.GRIDS))
    models: dict[str, tuple[str, str | Path]] = {
        REWARD: (f"The judge of round {ctx.round}", ctx.read(paths.REWARD_MERGED)),
        BEFORE: ("The judge before", ctx.read_before(paths.REWARD_MERGED)),
    }
    scores = _score(ctx, models, rankings, panels, template)
    scores[RANDOM] = bench.random_order("Random order", rankings)
    draws = {"resamples": params.bootstrap, "seed": params.seed}
    result = bench.evaluate_rankings(rankings, scores, [(REWARD, BEFORE), (REWARD, RANDOM)], **draws)
    best = {name: bench.best_above_worst(scores[name], rankings, **draws) for name in models}
    with ctx.writing(paths.CONSISTENCY_RANK) as out:
        out.mkdir()
        write_json(
            out / "results.json", {**result.as_dict(), "template": template, "best_above_worst": to_jsonable(best)}
        )
        result.table().to_parquet(out / "per_instance.parquet", index=False)
        write_result_tables(out, f"ConsistencyRank, round {ctx.round}", result.tables([], template))
    ctx.tracker.artifact(ctx.root / ctx.place(paths.CONSISTENCY_RANK), "tables")
    shares = {f"{name}.best_above_worst": estimate.mean for name, estimate in best.items()}
    ctx.report({**result.metrics(), **shares}, {"reward.": paths.REWARD_MERGED})


def _score(
    ctx: StageContext,
    models: Mapping[str, tuple[str, str | Path]],
    rankings: Sequence[bench.HeldOutRanking],
    panels: bench.Panels,
    template: str,
) -> dict[str, bench.CandidateScores]:
    """Scores by reward models, each a label and a folder, by their names."""
    from paco_core.benchmarks.rankings import count_distinct_pairs, score_rankings
    from paco_core.reward_model.scorer import Scorer

    scores = {}
    with ctx.progress(len(models) * count_distinct_pairs(rankings), "pairs") as progress:
        for name, (label, model) in models.items():
            scorer = Scorer.configured(model, ctx.params.reward)
            scores[name] = score_rankings(label, scorer, rankings, panels, template=template, advance=progress.advance)
            del scorer  # before the next one is loaded
    return scores


def _held_out(ctx: StageContext) -> tuple[list[bench.HeldOutRanking], bench.Panels, Rejected]:
    """The rankings, their images, and the rows that are left out: of the project, or of a folder as published."""
    from paco_core.benchmarks.public_files import read_rank_bench_rankings
    from paco_core.benchmarks.rankings import read_rankings
    from paco_core.data.records.panels import PanelStore
    from paco_core.io.rejected import Rejected

    params = ctx.params.consistency_rank
    if params.source is not None:
        rankings, images = read_rank_bench_rankings(ctx.read(Path(params.source)), params.max_instances, params.seed)
        return rankings, images, images.rejected
    rankings = read_rankings(ctx.read(paths.PAIRS) / "benchmark.parquet", params.max_instances, params.seed)
    return rankings, PanelStore.below(ctx.read(paths.GRIDS)), Rejected()


def _none_held_out(ctx: StageContext) -> bool:
    from paco_core.benchmarks.rankings import COLUMNS
    from paco_core.io.files import read_table

    return read_table(ctx.read(paths.PAIRS) / "benchmark.parquet", require=COLUMNS).empty
