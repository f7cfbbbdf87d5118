"""A diverse subset of the prompts, by their themes' text embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paco_core import paths
from paco_core.dataset.diversify import diversify
from paco_core.dataset.embeddings import embed_texts
from paco_core.dataset.records import read_prompts, write_prompts

if TYPE_CHECKING:
    from paco_core.context import StageContext


def run(ctx: StageContext) -> None:
    import numpy as np
    import pandas as pd

    params = ctx.params.diverse_prompts
    records = read_prompts(ctx.read(paths.PROMPTS) / "prompts.jsonl")
    model = params.model if params.model.startswith("hf-hub:") else ctx.read(Path(params.model))
    embedded = embed_texts(model, [record.theme for record in records], params.device)
    found = diversify(embedded.rows, records, target=params.target, threshold=params.threshold)
    neighbours = pd.DataFrame(
        {
            "idx": [record.idx for record in records],
            "nearest_before": found.nearest_before,
            "nearest_after": found.nearest_after,
        }
    )
    with ctx.writing(paths.DIVERSE_PROMPTS) as out:
        write_prompts(out / "prompts.jsonl", [records[position] for position in found.kept])
        neighbours.to_parquet(out / "neighbours.parquet", index=False)
    ctx.report(
        {
            "prompts_before": len(records),
            "prompts": len(found.kept),
            "threshold": found.threshold,
            "restored_subcategories": found.restored,
            "themes_filling_window": embedded.full_windows,
            "nearest_similarity_before": float(np.nanmean(found.nearest_before)),
            "nearest_similarity_after": float(np.nanmean(found.nearest_after)),
        }
    )
