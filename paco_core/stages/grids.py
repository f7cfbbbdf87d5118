"""One shard of the grids, painted by the base generator; goes on where a killed run stopped."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from paco_core.config.references import model_at
from paco_core.data.grids import grids
from paco_core.data.grids.grid_workers import paint_apart
from paco_core.data.grids.text_to_image import TextToImage
from paco_core.data.records.records import read_prompts
from paco_core.io import paths
from paco_core.io.pictures import decode_image
from paco_core.runtime import launchers

if TYPE_CHECKING:
    from paco_core.runtime.context import StageContext

SHOWN = 4


def run(ctx: StageContext) -> None:
    params = ctx.params.grids
    prompts = read_prompts(ctx.read(paths.DIVERSE_PROMPTS) / "prompts.jsonl", none_allowed=True)
    recipe = grids.Painting.of(params, ctx.root)
    records = grids.shard_of(prompts, int(ctx.item or 0), ctx.params.grid_shards)
    jobs = grids.grid_jobs(records, params.seeds, recipe)
    finished = grids.Finished(ctx.unfinished / recipe.digest)
    if not jobs:
        ctx.say(f"grids: nothing is painted: {'grids.seeds is empty' if records else 'there are no prompts'}")
    with ctx.progress(sum(job.id not in finished for job in jobs), "pictures") as progress:
        apart = partial(paint_apart, gpu=params.device.startswith("cuda"), threads=ctx.params.threads)
        painted = (apart if launchers.chosen() == "ray" else grids.paint)(
            jobs,
            finished,
            partial(TextToImage.load, model_at(ctx.root, params.model, "grids.model"), params),
            batch_size=params.batch_size,
            say=ctx.say,
            advance=progress.advance,
        )
    with ctx.writing(paths.GRIDS / f"shard-{ctx.item}") as out:
        grids.write_grids(out, jobs, finished)
    for number, job in enumerate(jobs[: SHOWN * len(params.seeds) : len(params.seeds) or 1]):
        ctx.image(decode_image(finished[job.id], job.id), f"grids/{number}")
    ctx.report(
        {"pictures": len(jobs), "prompts": len(records), "batch_size": painted.batch_size},
        painted=painted.painted,
        resumed=painted.resumed,
    )
    finished.forget([job.id for job in jobs])
