"""Held-out rankings: the trained reward against its base, CLIP and chance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paco_core import paths
from paco_core.benchmarks import consistency_rank as bench
from paco_core.benchmarks.clip_images import ClipImages
from paco_core.benchmarks.published import CONSISTENCY_RANK
from paco_core.files import write_json

if TYPE_CHECKING:
    from paco_core.context import StageContext


def run(ctx: StageContext) -> None:
    from paco_core.dataset.panels import PanelStore
    from paco_core.reward_model.network import source
    from paco_core.reward_model.scorer import Scorer

    params, reward = ctx.params.consistency_rank, ctx.params.reward
    benchmark = ctx.read(paths.PAIRS) / "benchmark.parquet"
    instances = bench.read_instances(benchmark, params.max_instances, params.seed)
    panels = PanelStore.below(ctx.read(paths.GRIDS))
    judgements = {}
    models: dict[str, tuple[str, str | Path]] = {
        "reward": ("PaCo-Reward, trained here", ctx.read(paths.REWARD_MERGED)),
        "base": ("Its base, untrained", source(ctx.root, reward.base)),
    }
    with ctx.progress(len(models) * bench.count_questions(instances), "pairs") as progress:
        for name, (label, folder) in models.items():
            scorer = Scorer(
                folder,
                device=reward.device,
                dtype=reward.dtype,
                min_pixels=reward.min_pixels,
                max_pixels=reward.max_pixels,
            )
            judgements[name] = bench.judge_pairs(
                label, scorer, instances, panels, template=reward.template, advance=progress.advance
            )
    if params.clip is not None:
        clip = ClipImages(ctx.read(Path(params.clip)))
        judgements["clip_i"] = bench.judge_clip("CLIP-I, cosine of two pictures", clip, instances, panels)
    judgements["random"] = bench.judge_randomly("Random order", instances, params.seed)
    rivals = [("reward", name) for name in judgements if name != "reward"]
    result = bench.evaluate(instances, judgements, rivals, resamples=params.bootstrap, seed=params.seed)
    published = [{"model": r.model, "source": r.source, "figures": dict(r.figures)} for r in CONSISTENCY_RANK]
    with ctx.writing(paths.CONSISTENCY_RANK) as out:
        out.mkdir()
        write_json(out / "results.json", {**result.as_dict(), "template": reward.template, "published": published})
        result.table().to_parquet(out / "per_instance.parquet", index=False)
    ctx.report(result.metrics())
