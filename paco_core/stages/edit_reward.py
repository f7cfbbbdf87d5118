"""Two edits of a picture: does the reward prefer the better one? Its base, CLIP and chance beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.io import paths
from paco_core.runtime.stage import BASE_GB, Cost, Stage

if TYPE_CHECKING:
    from paco_core.config.params import Params
    from paco_core.runtime.context import StageContext


def _skipped(params: Params) -> str | None:
    has_drawn_cases = params.world == "storybook"
    if has_drawn_cases or params.edit_reward.source is not None:
        return None
    return "edit_reward.source is null, and only the world storybook draws cases of its own"


def _cost(params: Params, root: Path) -> Cost:
    from paco_core.planning import amounts
    from paco_core.planning.models import model_gb

    settings, memory = params.edit_reward, BASE_GB + 2 * model_gb(root, params.reward.base)
    if settings.source:
        return Cost("the public comparisons", memory, None, params.reward.device)
    seconds = amounts.seconds(params, settings.count * 8 / 3 * 2 * amounts.CPU_SECONDS["score_pair"])
    return Cost(f"{settings.count} comparisons", memory, seconds, params.reward.device)


STAGE = Stage(
    device=lambda params: params.reward.device,
    skipped=_skipped,
    cost=_cost,
    headline=(("reward.overall",), ("base.overall",), ("reward_minus_base.overall",), ("cases",)),
    compared=True,
    tables=True,
)


def run(ctx: StageContext) -> None:
    params, reward = ctx.params.edit_reward, ctx.params.reward
    if reason := _skipped(ctx.params):
        return ctx.skip(paths.EDIT_REWARD, reason)

    from paco_core.benchmarks import edit_rankings as bench
    from paco_core.benchmarks.public_files import draw_edit_cases, edit_benchmark_name, read_edit_bench
    from paco_core.benchmarks.published import EDIT_BENCHMARKS, EDIT_REWARD_BENCH
    from paco_core.benchmarks.rankings import random_order
    from paco_core.benchmarks.tables import write_result_tables
    from paco_core.config.references import model_at
    from paco_core.io.files import write_json
    from paco_core.io.rejected import Rejected
    from paco_core.models.open_clip import OpenClip
    from paco_core.reward_model.scorer import Scorer

    if params.source is not None:
        cases, rejected = read_edit_bench(ctx.read(Path(params.source)))
        benchmark = edit_benchmark_name(ctx.read(Path(params.source)))
        rejected.print(ctx.log)
    else:
        cases, rejected = draw_edit_cases(params.count, params.size, params.seed), Rejected()
        benchmark = EDIT_REWARD_BENCH
    models: dict[str, tuple[str, str | Path]] = {
        "reward": (f"PaCo-Reward, {reward.weights or 'trained here'}", ctx.read(paths.REWARD_MERGED)),
        "base": ("Its base, untrained", model_at(ctx.root, reward.base, "reward.base")),
    }
    scores = {}
    with ctx.progress(len(models) * bench.count_edit_queries(cases), "queries") as progress:
        for name, (label, model) in models.items():
            scorer = Scorer.configured(model, reward)
            scorer.any_case = params.wording == "published"
            scores[name] = bench.score_edits(label, scorer, cases, wording=params.wording, advance=progress.advance)
            del scorer  # before the next one is loaded
    if params.clip is not None and any(case.dimension == bench.CONSISTENCY for case in cases):
        clip = OpenClip(ctx.model(params.clip), reward.device)
        scores["clip_i"] = bench.score_edit_embeddings("CLIP-I, cosine of two pictures", clip, cases)
    scores["random"] = random_order("Chance", cases)
    pairs = [("reward", name) for name in scores if name != "reward"]
    draws = {"resamples": params.bootstrap, "seed": params.seed}
    result = bench.evaluate_edits(cases, scores, pairs, **draws, benchmark=benchmark)
    published = EDIT_BENCHMARKS[benchmark]
    with ctx.writing(paths.EDIT_REWARD) as out:
        out.mkdir()
        rows = {"wording": params.wording, "published": [row.as_dict() for row in published]}
        write_json(out / "results.json", {**result.as_dict(), **rows})
        result.table().to_parquet(out / "per_case.parquet", index=False)
        write_result_tables(out, benchmark, result.tables(published, params.wording))
    ctx.tracker.artifact(ctx.root / paths.EDIT_REWARD, "tables")
    ctx.report({**result.metrics(), **rejected.figures()}, {"reward.": paths.REWARD_MERGED})
