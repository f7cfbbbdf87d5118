"""Consistent and inconsistent pairs from the rankings, editing pairs, and the held-out benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paco_core import paths
from paco_core.dataset import pairs
from paco_core.dataset.annotation.votes import from_table
from paco_core.dataset.editing import editing_pairs
from paco_core.dataset.leakage import leakage, picture_md5s
from paco_core.dataset.records import read_prompts
from paco_core.files import DataError, write_json
from paco_core.shards import ShardReader

if TYPE_CHECKING:
    from paco_core.context import StageContext

PLACES_SHOWN = 5


def run(ctx: StageContext) -> None:
    import pandas as pd

    params = ctx.params.pairs
    instances = pd.read_parquet(ctx.read(paths.RANKINGS) / "instances.parquet")
    annotations = from_table(pd.read_parquet(ctx.read(paths.ANNOTATIONS) / "rankings.parquet"))
    prompts = read_prompts(ctx.read(paths.DIVERSE_PROMPTS) / "prompts.jsonl")
    md5s = picture_md5s(ShardReader.below(ctx.read(paths.GRIDS)).index)
    editing = editing_pairs(params.editing, ctx.root)
    for place, cause in editing.rejected[:PLACES_SHOWN]:
        ctx.say(f"editing triple left out: {place}: {cause}")
    joined, unranked = pairs.join(instances, {row.instance_id: row for row in annotations})
    found = pairs.split(joined, params, editing.pairs)
    records = {record.idx: record for record in prompts}
    parts = {"train": pairs.pair_table(found.train, records), "validation": pairs.pair_table(found.validation, records)}
    benchmark = pairs.benchmark_table(found.benchmark, records)
    leaked = leakage(
        benchmark,
        parts,
        {record.idx: record.prompt for record in prompts},
        md5s | editing.md5s,
    )
    if leaked and params.leakage == "refuse":
        raise DataError(
            f"{leaked}; nothing was written. Split by prompt (pairs.split), or set pairs.leakage: report to go on"
        )
    figures = {
        "unranked_instances": unranked,
        **found.metrics(),
        "leaked_prompts": len(leaked.prompts),
        "leaked_pictures": len(leaked.pictures),
        **{f"editing_rejected.{cause}": count for cause, count in sorted(editing.causes.items())},
    }
    rules = params.model_dump(include={"rule", "confident", "split", "leakage", "balance"})
    with ctx.writing(paths.PAIRS) as out:
        out.mkdir()
        for part, table in parts.items():
            table.to_parquet(out / f"{part}.parquet", index=False)
        benchmark.to_parquet(out / "benchmark.parquet", index=False)
        editing.write(out)
        write_json(out / "summary.json", {**rules, "counts": figures})
    if leaked:
        ctx.say(f"pairs: {leaked}; pairs.leakage is 'report'")
    ctx.report(figures)
