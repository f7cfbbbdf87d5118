"""The stories that ``t2is`` painted, measured as ViStoryBench measures: likeness to characters, what shots describe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.io import paths
from paco_core.runtime.preview import Table
from paco_core.runtime.stage import BASE_GB, Cost, Stage, library_check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paco_core.benchmarks.t2is_bench.evaluators import BenchmarkPart
    from paco_core.benchmarks.t2is_bench.sets import PaintedSet
    from paco_core.config.params import Params
    from paco_core.config.params_benchmarks import VistoryParams
    from paco_core.io.rejected import Rejected
    from paco_core.runtime.context import StageContext
    from paco_core.runtime.preview import Preview

QUESTIONS = 111  # about a story: published ones have 16 shots, one or two characters in each, and images of those


def _skipped(params: Params) -> str | None:
    from paco_core.tasks.sets import SETS
    from paco_core.tasks.table import recipes_of

    return _nothing_asked(params.vistory) or (None if recipes_of(SETS, params.policies) else "no recipe paints sets")


def _nothing_asked(params: VistoryParams) -> str | None:
    if params.source is None:
        return "vistory.source names no stories"
    if params.clip is None and params.adherence is None:
        return "vistory names neither a clip nor a judge of adherence"
    return None


def _cost(params: Params, root: Path) -> Cost:
    """Questions about stories as long as the published ones; the stage itself counts those of the records at hand."""
    from paco_core.planning import amounts
    from paco_core.planning.models import model_gb
    from paco_core.tasks.sets import SETS
    from paco_core.tasks.table import recipes_of

    bench, t2is = params.vistory, params.t2is
    sizes = sum(len(recipe.eval_sizes) for recipe in recipes_of(SETS, params.policies).values())
    stories = t2is.prompts * len(t2is.seeds) * (3 if t2is.separately else 2) * sizes
    questions = stories * QUESTIONS if bench.adherence is not None else 0
    model = bench.adherence.model if bench.adherence is not None else bench.clip
    return Cost(
        f"about {questions} queries about {stories} generated stories",
        BASE_GB + model_gb(root, model),
        amounts.seconds(params, questions * amounts.CPU_SECONDS["bench_question"]),
        params.reward.device,
    )


def _preview(data: Path, _item: str) -> dict[str, Preview]:
    """The figures of each method, as the benchmark's table has them."""
    from paco_core.benchmarks.tables import read_method_means

    return {"measured_stories": Table(read_method_means(data / paths.VISTORY.name / "results.json"))}


STAGE = Stage(
    device=lambda params: params.reward.device,
    skipped=_skipped,
    cost=_cost,
    headline=(("*.after.identity_cross",), ("*.after.adherence",)),
    preview=_preview,
    checks=(
        library_check(
            "paco_core.benchmarks.checks:every_question_was_answered",
            "No question about a story failed",
            paths.metrics_file(paths.VISTORY.name),
        ),
    ),
    tables=True,
)


def run(ctx: StageContext) -> None:
    from paco_core.runtime.stage import skip_reason

    params = ctx.params.vistory
    if reason := skip_reason(ctx.read(paths.T2IS)):
        return ctx.skip(paths.VISTORY, f"t2is was skipped: {reason}")
    if reason := _nothing_asked(params):
        return ctx.skip(paths.VISTORY, reason)

    from paco_core.benchmarks.statistics import flat_metrics
    from paco_core.benchmarks.t2is_bench.evaluators import count_queries, evaluate_sets
    from paco_core.benchmarks.tables import write_result_tables
    from paco_core.benchmarks.vistory import estimate_stories, panel_scores, vistory_tables
    from paco_core.benchmarks.vistory_characters import panel_table
    from paco_core.io.answer import to_jsonable
    from paco_core.io.files import write_json
    from paco_core.io.rejected import Rejected

    rejected = Rejected()
    stories = _stories(ctx, rejected)
    rejected.print(ctx.log)
    parts = dict(_parts(ctx))
    questions = sum(count_queries(stories, parts).values())
    ctx.log(f"{questions} queries about {len(stories)} generated stories")
    with ctx.progress(questions, "queries") as progress:
        table, failed = evaluate_sets(stories, parts, ctx.params.serving.max_failed_share, progress.advance)
    draws = {"resamples": params.bootstrap, "seed": params.seed}
    estimates = {str(name): estimate_stories(rows, **draws) for name, rows in table.groupby("method", sort=False)}
    labels = {method.method: method.label for method in stories}
    with ctx.writing(paths.VISTORY) as out:
        out.mkdir()
        result = {
            "methods": labels,
            "figures": estimates,
            "judges": {name: part.judge for name, part in parts.items()},
            "failed": dict(failed),
        }
        write_json(out / "results.json", to_jsonable(result))
        table.to_parquet(out / "per_story.parquet", index=False)
        panel_table(table, panel_scores(parts)).to_parquet(out / "per_panel.parquet", index=False)
        by_label = {labels[method]: row for method, row in estimates.items()}
        write_result_tables(out, "ViStoryBench", vistory_tables(by_label, parts, table["prompt_id"].nunique()))
    ctx.tracker.artifact(ctx.root / paths.VISTORY, "tables")
    metrics: dict[str, float] = {"stories": len(stories), "failed": failed.total(), **rejected.figures()}
    policies = {method.partition(".")[0] for method in estimates}
    ctx.report(metrics | flat_metrics(estimates), {f"{name}.": paths.POLICIES / name for name in policies})


def _stories(ctx: StageContext, rejected: Rejected) -> list[PaintedSet]:
    """What ``t2is`` painted that is a story.

    Raises:
        DataError: when none is.
    """
    from paco_core.benchmarks.vistory import painted_stories
    from paco_core.io.files import DataError

    stories = painted_stories(ctx.read(paths.T2IS), rejected)
    if not stories:
        raise DataError(
            f"{paths.T2IS}: none of the painted sets is a story; name {ctx.params.vistory.source}/prompts_en.jsonl in "
            f"policies.recipes.*.prompts.test, or leave vistory.source null{rejected.example}"
        )
    return stories


def _parts(ctx: StageContext) -> Iterator[tuple[str, BenchmarkPart]]:
    """What the parameters ask for, by name."""
    from paco_core.benchmarks.t2is_bench.evaluators import BenchmarkPart, load_scorer, scorer_name
    from paco_core.benchmarks.vistory import AdherenceToShots, SimilarityByClip
    from paco_core.benchmarks.vistory_characters import IdentityByEvaluator
    from paco_core.models.open_clip import OpenClip

    params, reward = ctx.params.vistory, ctx.params.reward
    folder = ctx.read(Path(str(params.source)))
    if params.clip is not None:
        clip = OpenClip(ctx.model(params.clip), reward.device)
        measure = SimilarityByClip(clip, folder)
        yield "similarity", BenchmarkPart(measure, f"{params.clip}, whole panels", "")
    if (by := params.adherence) is not None:
        scorer, name = load_scorer(by, reward, ctx.root), scorer_name(by)
        yield "identity", BenchmarkPart(IdentityByEvaluator(scorer, folder), f"{name}, whole panels", "")
        yield "adherence", BenchmarkPart(AdherenceToShots(scorer), name, "")
