"""One shard of the grids, painted by the base generator; goes on where a killed run stopped."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING

from paco_core.io import paths
from paco_core.runtime.preview import Pictures
from paco_core.runtime.stage import BASE_GB, Check, Cost, Stage

if TYPE_CHECKING:
    from pathlib import Path

    from paco_core.config.params import Params
    from paco_core.io.check_report import CheckReport
    from paco_core.runtime.context import StageContext
    from paco_core.runtime.preview import Preview

SHEET, COLUMNS = 12, 6
SHOWN = 4


def _skipped(params: Params) -> str | None:
    if params.prompts.engine == "none":
        return "prompts.engine is 'none'"
    return None if params.grids.seeds else "grids.seeds is empty"


def _cost(params: Params, root: Path) -> Cost:
    from paco_core.planning import amounts
    from paco_core.planning.weights import model_gb

    asked, pictures = params.grids, amounts.pictures(params, root)
    return Cost(
        f"{pictures} pictures of {asked.height} x {asked.width}, {asked.steps} steps",
        BASE_GB + model_gb(root, asked.model),
        amounts.seconds(params, pictures * asked.steps * amounts.CPU_SECONDS["grid_step"]),
        asked.device,
        f"{len(params.grid_shards)} shards",
    )


def _are_complete(root: Path, item: str | None) -> CheckReport:
    """In the run of one shard that shard: the others may not be painted yet. By itself all of them."""
    from paco_core.config.params import PARAMS_FILE, load
    from paco_core.data import checks

    if item is None:
        return checks.grids_are_complete(root / paths.DATA)
    return checks.grids_are_complete(root / paths.DATA, int(item), load(root / PARAMS_FILE).grid_shards)


def _preview(data: Path, item: str) -> dict[str, Preview]:
    """Pictures of this shard at even distances; in a round of those that it painted."""
    from paco_core.io.shards import ShardReader

    kept, own = data / paths.GRIDS.name, f"round-{item}"
    reader = ShardReader([kept / (own if (kept / own).is_dir() else f"shard-{item}")])
    ids = list(reader.index["id"])
    if not ids:
        return {}
    chosen = ids[:: max(1, len(ids) // SHEET)][:SHEET]
    return {"contact_sheet": Pictures([reader.read(name) for name in chosen], COLUMNS, f"shard {item}")}


STAGE = Stage(
    device=lambda params: params.grids.device,
    skipped=_skipped,
    cost=_cost,
    headline=(("pictures",),),
    columns={"size": "bytes of the PNG"},
    preview=_preview,
    checks=(Check("grids_are_complete", _are_complete, "Every prompt has its grids, and pictures open"),),
)


def run(ctx: StageContext) -> None:
    from paco_core.config.references import model_at
    from paco_core.data.grids import grids
    from paco_core.data.grids.divided import shard_of
    from paco_core.data.grids.grid_workers import paint_apart
    from paco_core.data.grids.text_to_image import TextToImage
    from paco_core.data.records.records import read_prompts
    from paco_core.io.pictures import decode_image
    from paco_core.io.shards import ShardReader
    from paco_core.policies.cuts import report
    from paco_core.policies.pipeline_cuts import cut_prompts
    from paco_core.policies.windows import refuse_window
    from paco_core.runtime import launchers

    params = ctx.params.grids
    prompts = read_prompts(ctx.read(paths.DIVERSE_PROMPTS) / "prompts.jsonl", none_allowed=True)
    adapter, records = None, prompts
    if ctx.round is None:
        records = shard_of(prompts, int(ctx.item or 0), ctx.params.grid_shards)
    else:
        adapter = ctx.read_before(paths.POLICIES / ctx.params.rounds.recipe) / "adapter"
    recipe = grids.Painting.from_params(params, ctx.root, adapter)
    jobs = grids.grid_jobs(records, params.seeds, recipe)
    finished = grids.Finished(ctx.unfinished / recipe.digest)
    if not jobs:
        ctx.say(f"grids: nothing is painted: {'grids.seeds is empty' if records else 'there are no prompts'}")
    model = model_at(ctx.root, params.model, "grids.model")
    if jobs:
        refuse_window("grids", params, ctx.root)
    with ctx.progress(sum(job.id not in finished for job in jobs), "pictures") as progress:
        apart = partial(paint_apart, gpu=params.device.startswith("cuda"), threads=ctx.params.threads)
        painted = (apart if launchers.chosen() == "ray" else grids.paint)(
            jobs,
            finished,
            partial(TextToImage.load, model, params, adapter=adapter),
            batch_size=params.batch_size,
            say=ctx.say,
            advance=progress.advance,
        )
    with ctx.writing(paths.GRIDS / f"shard-{ctx.item}" if ctx.round is None else paths.GRIDS) as out:
        if ctx.round is None:
            grids.write_grids(out, jobs, finished)
        else:  # all pictures so far; DVC's cache holds each shard once
            for shard in ShardReader.below(ctx.read_before(paths.GRIDS)).folders:
                shutil.copytree(shard, out / shard.name)
            grids.write_grids(out / f"round-{ctx.round}", jobs, finished)
    for number, job in enumerate(jobs[: SHOWN * len(params.seeds) : len(params.seeds) or 1]):
        ctx.image(decode_image(finished[job.id], job.id), f"grids/{number}")
    cut = report(cut_prompts(model, records, params.max_sequence_length) if jobs else {}, ctx.say)
    ctx.report(
        {"pictures": len(jobs), "prompts": len(records), "batch_size": painted.batch_size, **cut},
        painted=painted.painted,
        resumed=painted.resumed,
    )
    finished.forget([job.id for job in jobs])
