"""A small data folder of drawn grids with known, partly broken consistency, for tests of the data stages."""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import HealthCheck, settings

from paco_core.config.params import PromptsParams
from paco_core.data.annotation.rankings import build_instances
from paco_core.data.annotation.votes import Annotation, to_table
from paco_core.data.grids.grids import GenerationSettings, GridFiles, GridJob, grid_jobs, write_grids
from paco_core.data.pairs.editing import write_generated_edits
from paco_core.data.prompts.edit_prompts import storybook_edit_prompts
from paco_core.data.prompts.prompts import make_prompts
from paco_core.data.records.panels import shard_of
from paco_core.data.records.records import PromptRecord, write_prompts
from paco_core.io.shards import ShardReader, encode_png

#: Examples are the same on every run, and slow machines are no failure.
quick = settings(deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
SEEDS = (0, 1)
RECIPE = GenerationSettings("drawn", "float32", 1, 1.0, 40)


def records(count: int, layout: str = "2x2", side: int = 64) -> list[PromptRecord]:
    return make_prompts(PromptsParams(engine="storybook", count=count, layout=layout, seed=0), (side, side)).records


def draw_grids(data: Path, prompts: list[PromptRecord], shards: int = 2) -> None:
    """Prompts and grids below ``data``, as their stages leave them."""
    for name in ("prompts", "diverse_prompts"):
        write_prompts(data / name / "prompts.jsonl", prompts)
    finished = GridFiles(data.parent / "work")
    for shard in range(shards):
        jobs = grid_jobs(shard_of(prompts, shard, list(range(shards))), SEEDS, RECIPE)
        for job in jobs:
            finished.save(job.id, _render(job))
        write_grids(data / "grids" / f"shard-{shard}", jobs, finished)


def rank_grids(data: Path) -> None:
    """Ranking instances of the grids, one annotator's rankings with scores drawn from the ids, and no painted edits."""
    table = build_instances(ShardReader.below(data / "grids").index)
    votes = []
    for instance_id, candidates in zip(table["instance_id"], table["candidates"], strict=True):
        rng = random.Random(str(instance_id))
        scores = [rng.choice([0.0, 0.5, 1.0]) for _ in candidates]
        order = sorted(range(len(scores)), key=lambda n: -scores[n])
        votes.append(Annotation(instance_id, "drawn", order, scores, len(set(scores)) < len(scores)))
    for name, frame in (("rankings/instances", table), ("annotations/rankings", to_table(votes))):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        frame.to_parquet(data / f"{name}.parquet", index=False)
    prompts = storybook_edit_prompts(2, 32, seed=0)
    prompts.hold_out(1, seed=0)
    prompts.write(data / "edit_prompts")
    write_generated_edits(data / "edits", [], {})


def _render(job: GridJob) -> bytes:
    """The grid that the prompt asks for, with some panels off in colour or species."""
    from PIL import Image

    from paco_core.storybook.drawing import draw
    from paco_core.storybook.prompts import parse_storybook_prompt

    rng = random.Random(job.id)
    side = job.record.height // 2
    picture = Image.new("RGB", (2 * side, 2 * side))
    for n, panel in enumerate(parse_storybook_prompt(job.record.prompt)):
        panel_variant = panel
        if rng.random() < 0.4:
            panel_variant = panel_variant.with_trait("colour", rng.choice(["red", "yellow", "green", "blue"]))
        if rng.random() < 0.2:
            panel_variant = panel_variant.with_trait("species", rng.choice(["cat", "frog", "elephant"]))
        picture.paste(draw(panel_variant, side, rng), (n % 2 * side, n // 2 * side))
    return encode_png(picture)
