"""Consistent and inconsistent pairs from the rankings, and the held-out benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paco_core import paths
from paco_core.dataset import pairs
from paco_core.dataset.annotation.votes import from_table
from paco_core.dataset.records import read_prompts

if TYPE_CHECKING:
    from paco_core.context import StageContext


def run(ctx: StageContext) -> None:
    import pandas as pd

    instances = pd.read_parquet(ctx.read(paths.RANKINGS) / "instances.parquet")
    annotations = from_table(pd.read_parquet(ctx.read(paths.ANNOTATIONS) / "rankings.parquet"))
    prompts = read_prompts(ctx.read(paths.DIVERSE_PROMPTS) / "prompts.jsonl")
    joined, unranked = pairs.join(instances, {row.instance_id: row for row in annotations})
    found = pairs.split(joined, ctx.params.pairs)
    records = {record.idx: record for record in prompts}
    with ctx.writing(paths.PAIRS) as out:
        out.mkdir()
        pairs.pair_table(found.train, records).to_parquet(out / "train.parquet", index=False)
        pairs.pair_table(found.validation, records).to_parquet(out / "validation.parquet", index=False)
        pairs.benchmark_table(found.benchmark, records).to_parquet(out / "benchmark.parquet", index=False)
    ctx.report({"unranked_instances": unranked, **found.metrics()})
