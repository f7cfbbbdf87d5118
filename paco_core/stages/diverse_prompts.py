"""A diverse subset of the prompts, by their text embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from paco_core.data.prompts import diversity_pictures
from paco_core.data.prompts.diversify import diversify
from paco_core.data.prompts.embeddings import embed_prompts, load_encoder
from paco_core.data.records.records import read_prompts, write_prompts
from paco_core.io import paths

if TYPE_CHECKING:
    from paco_core.data.records.records import PromptRecord
    from paco_core.runtime.context import StageContext


def run(ctx: StageContext) -> None:
    params = ctx.params.diverse_prompts
    records = read_prompts(ctx.read(paths.PROMPTS) / "prompts.jsonl", none_allowed=True)
    if not records or (params.target is None and params.threshold is None):
        return _keep_all(ctx, records)
    local = params.model.startswith("data/") or (ctx.root / params.model).exists()
    model = ctx.read(Path(params.model)) if local else params.model
    embedded = embed_prompts(load_encoder(params.encoder, model, params.device), records, params.text)
    found = diversify(embedded.rows, records, target=params.target, threshold=params.threshold)
    neighbours = pd.DataFrame(
        {
            "idx": [record.idx for record in records],
            "nearest_before": found.nearest_before,
            "nearest_after": found.nearest_after,
        }
    )
    pictures = {
        "nearest_similarity": diversity_pictures.histogram(found),
        "graph": diversity_pictures.graph(embedded.rows, records, found),
    }
    with ctx.writing(paths.DIVERSE_PROMPTS) as out:
        write_prompts(out / "prompts.jsonl", [records[position] for position in found.kept])
        neighbours.to_parquet(out / "neighbours.parquet", index=False)
        for name, picture in pictures.items():
            picture.save(out / f"{name}.png")
            ctx.image(picture, f"diverse_prompts/{name}")
    ctx.report(
        {
            "prompts_before": len(records),
            "prompts": len(found.kept),
            "threshold": found.threshold,
            "restored_subcategories": found.restored,
            "embedded_by_theme": embedded.by_theme,
            "cut_themes": embedded.cut_themes,
            "nearest_similarity_before": float(np.nanmean(found.nearest_before)),
            "nearest_similarity_after": float(np.nanmean(found.nearest_after)),
        },
        all_pairs_compared=str(found.exact),
    )


def _keep_all(ctx: StageContext, records: list[PromptRecord]) -> None:
    """Every prompt, without a look at how similar they are."""
    ctx.say("diverse_prompts: neither target nor threshold: every prompt is kept, none is embedded")
    with ctx.writing(paths.DIVERSE_PROMPTS) as out:
        write_prompts(out / "prompts.jsonl", records)
    ctx.report({"prompts_before": len(records), "prompts": len(records)})
