"""The sets that ``t2is`` painted, judged as T2IS-Bench judges: aesthetics, alignment, consistency, average."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.io import paths
from paco_core.runtime.preview import Table
from paco_core.runtime.stage import BASE_GB, Cost, Stage, library_check

if TYPE_CHECKING:
    from paco_core.benchmarks.t2is_bench.questions import Questions
    from paco_core.benchmarks.t2is_bench.sets import PaintedSet
    from paco_core.config.params import Params
    from paco_core.io.rejected import Rejected
    from paco_core.runtime.context import StageContext
    from paco_core.runtime.preview import Preview

CRITERIA, TEXTS = 10, 6  # of a record and of a panel: the mean of 298 public records; one a trait of the storybook


def _skipped(params: Params) -> str | None:
    from paco_core.tasks.sets import SETS
    from paco_core.tasks.table import recipes_of

    bench = params.t2is_bench
    if not (bench.consistency or bench.alignment or bench.aesthetics):
        return "t2is_bench names no judge"
    return None if recipes_of(SETS, params.policies) else "no recipe paints sets"


def _cost(params: Params, root: Path) -> Cost:
    """Questions about what ``t2is`` paints; the stage itself counts those of the records at hand."""
    from paco_core.planning import amounts
    from paco_core.planning.models import model_gb
    from paco_core.storybook import bench_texts
    from paco_core.tasks.sets import SETS
    from paco_core.tasks.table import recipes_of

    bench, t2is = params.t2is_bench, params.t2is
    criteria = sum(map(len, bench_texts.trait_criteria().values())) if params.world == "storybook" else CRITERIA
    a_set = (criteria * amounts.panel_pairs(params, root) if bench.consistency else 0) + (
        amounts.panels(params, root) * TEXTS if bench.alignment else 0
    )
    states = 3 if t2is.separately else 2
    sizes = sum(len(recipe.eval_sizes) for recipe in recipes_of(SETS, params.policies).values())
    sets = min(t2is.prompts, bench.prompts or t2is.prompts) * len(t2is.seeds) * states * sizes
    judge = bench.consistency
    return Cost(
        f"about {round(sets * a_set)} queries",
        BASE_GB + model_gb(root, judge.model if judge else None),
        amounts.seconds(params, sets * a_set * amounts.CPU_SECONDS["bench_question"]),
        params.reward.device,
    )


def _preview(data: Path, _item: str) -> dict[str, Preview]:
    """The figures of each method, as the benchmark's table has them."""
    from paco_core.benchmarks.tables import read_method_means

    return {"judged_sets": Table(read_method_means(data / paths.T2IS_BENCH.name / "results.json"))}


STAGE = Stage(
    device=lambda params: params.reward.device,
    skipped=_skipped,
    cost=_cost,
    headline=(("*.after.average", "*.after.consistency"), ("*.after.alignment",)),
    preview=_preview,
    checks=(
        library_check(
            "paco_core.benchmarks.checks:every_question_was_answered",
            "No question of T2IS-Bench failed",
            paths.metrics_file(paths.T2IS_BENCH.name),
        ),
    ),
    tables=True,
)


def run(ctx: StageContext) -> None:
    from paco_core.runtime.stage import skip_reason

    params = ctx.params.t2is_bench
    if reason := skip_reason(ctx.read(paths.T2IS)):
        return ctx.skip(paths.T2IS_BENCH, f"t2is was skipped: {reason}")
    if not (params.consistency or params.alignment or params.aesthetics):
        return ctx.skip(paths.T2IS_BENCH, "t2is_bench names no judge: consistency, alignment and aesthetics are null")

    from paco_core.benchmarks.published import T2IS_BENCH
    from paco_core.benchmarks.statistics import flat_metrics
    from paco_core.benchmarks.t2is_bench.evaluators import count_queries, evaluate_sets, open_parts
    from paco_core.benchmarks.t2is_bench.questions import Questions, read_criteria, read_panels
    from paco_core.benchmarks.t2is_bench.tables import estimate_layouts, estimate_sets, t2is_bench_tables
    from paco_core.benchmarks.tables import write_result_tables
    from paco_core.io.answer import to_jsonable
    from paco_core.io.files import write_json
    from paco_core.io.rejected import Rejected

    rejected = Rejected()
    questions = Questions(
        None if params.criteria is None else read_criteria(ctx.read(Path(params.criteria)), rejected),
        {} if params.texts is None else read_panels(ctx.read(Path(params.texts)), rejected),
        storybook=ctx.params.world == "storybook",
    )
    sets = _sets(ctx, questions, rejected)
    rejected.print(ctx.log)
    with open_parts(params, ctx.params.reward, questions, ctx.root) as parts:
        counts = count_queries(sets, parts)
        for name, part in parts.items():
            ctx.log(f"{name}: {counts[name]} queries about {len(sets)} sets to {part.judge}")
        with ctx.progress(sum(counts.values()), "queries") as progress:
            table, failed = evaluate_sets(sets, parts, ctx.params.serving.max_failed_share, progress.advance)
        draws = {"resamples": params.bootstrap, "seed": params.seed}
        estimates = {str(name): estimate_sets(rows, **draws) for name, rows in table.groupby("method", sort=False)}
        layouts = estimate_layouts(table, {s.record.idx: s.record.layout for s in sets}, **draws)
        with ctx.writing(paths.T2IS_BENCH) as out:
            out.mkdir()
            result = {
                "methods": {s.method: s.label for s in sets},
                "figures": estimates,
                "judges": {name: {"judge": part.judge, "wording": part.wording} for name, part in parts.items()},
                "failed": dict(failed),
                "published": [row.as_dict() for row in T2IS_BENCH],
            }
            if layouts:
                result["layouts"] = layouts
            write_json(out / "results.json", to_jsonable(result))
            table.to_parquet(out / "per_set.parquet", index=False)
            labels = {s.method: s.label for s in sets}
            by_label = {s.label: estimates[s.method] for s in sets}
            by_layout = {layout: {labels[m]: row for m, row in methods.items()} for layout, methods in layouts.items()}
            write_result_tables(out, "T2IS-Bench", t2is_bench_tables(by_label, parts, T2IS_BENCH, by_layout))
    ctx.tracker.artifact(ctx.root / paths.T2IS_BENCH, "tables")
    metrics: dict[str, float] = {"sets": len(sets), "failed": failed.total(), **rejected.figures()}
    policies = {method.partition(".")[0] for method in estimates}
    ctx.report(metrics | flat_metrics(estimates), {f"{name}.": paths.POLICIES / name for name in policies})


def _sets(ctx: StageContext, questions: Questions, rejected: Rejected) -> list[PaintedSet]:
    """What ``t2is`` painted, and what others painted for the same prompts."""
    from paco_core.benchmarks.t2is_bench.sets import painted_sets, read_records, sets_elsewhere

    params, folder = ctx.params.t2is_bench, ctx.read(paths.T2IS)
    records = questions.usable_records(read_records(folder, params.prompts), rejected)
    sets = painted_sets(folder, records)
    for name, elsewhere in params.pictures.items():
        sets += sets_elsewhere(name, ctx.read(Path(elsewhere)), records, rejected)
    return sets
