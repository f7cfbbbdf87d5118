"""A diverse subset of the prompts, by their text embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.io import paths
from paco_core.runtime.preview import Chart, Table
from paco_core.runtime.stage import BASE_GB, Cost, Stage, library_check

if TYPE_CHECKING:
    from paco_core.config.params import Params
    from paco_core.data.records.records import PromptRecord
    from paco_core.runtime.context import StageContext
    from paco_core.runtime.preview import Preview


def _is_chosen(params: Params) -> bool:
    return params.diverse_prompts.target is not None or params.diverse_prompts.threshold is not None


def _skipped(params: Params) -> str | None:
    return "there are no prompts" if params.prompts.engine == "none" else None


def _cost(params: Params, root: Path) -> Cost:
    from paco_core.planning import amounts
    from paco_core.planning.models import model_gb

    work = f"{amounts.prompts(params, root)} -> {amounts.diverse_prompts(params, root)} prompts"
    if not _is_chosen(params):
        return Cost(work)
    model = model_gb(root, params.diverse_prompts.model)
    return Cost(work, BASE_GB + model, amounts.seconds(params, 2), params.diverse_prompts.device)


def _preview(data: Path, _item: str) -> dict[str, Preview]:
    """Both charts, and the kept prompts with the nearest neighbour among the kept: the least diverse of the subset."""
    from paco_core.data.records.records import read_prompts
    from paco_core.io.files import read_table

    folder = data / paths.DIVERSE_PROMPTS.name
    if not (folder / "neighbours.parquet").is_file():
        return {}  # every prompt was kept, without a look
    themes = {record.idx: record.theme for record in read_prompts(folder / "prompts.jsonl")}
    neighbours = read_table(folder / "neighbours.parquet")
    neighbours = neighbours[neighbours["idx"].isin(themes)].sort_values("nearest_after", ascending=False, kind="stable")
    return {
        **{name: Chart(folder / f"{name}.png") for name in ("nearest_similarity", "graph")},
        "closest_prompts": Table(neighbours.assign(theme=neighbours["idx"].map(themes))),
    }


STAGE = Stage(
    device=lambda params: params.diverse_prompts.device,
    skipped=_skipped,
    unread=lambda params: () if _is_chosen(params) else ("diverse_prompts.model",),
    cost=_cost,
    headline=(("prompts",), ("nearest_similarity_after",)),
    preview=_preview,
    checks=(
        library_check(
            "paco_core.data.checks:diverse_prompts_are_a_subset",
            "Every diverse prompt is one of the prompts; no subcategory is emptied",
        ),
    ),
)


def run(ctx: StageContext) -> None:
    from paco_core.data.records.records import read_prompts, write_prompts

    params = ctx.params.diverse_prompts
    records = read_prompts(ctx.read(paths.PROMPTS) / "prompts.jsonl", none_allowed=True)
    if not records or (params.target is None and params.threshold is None):
        return _keep_all(ctx, records)

    import numpy as np
    import pandas as pd

    from paco_core.data.prompts import diversity_pictures
    from paco_core.data.prompts.diversify import diversify
    from paco_core.data.prompts.embeddings import embed_prompts, load_encoder

    local = params.model.startswith("data/") or (ctx.root / params.model).exists()
    model = ctx.read(Path(params.model)) if local else params.model
    embedded = embed_prompts(load_encoder(params.encoder, model, params.device), records, params.text)
    selection = diversify(embedded.rows, records, target=params.target, threshold=params.threshold)
    neighbours = pd.DataFrame(
        {
            "idx": [record.idx for record in records],
            "nearest_before": selection.nearest_before,
            "nearest_after": selection.nearest_after,
        }
    )
    pictures = {
        "nearest_similarity": diversity_pictures.histogram(selection),
        "graph": diversity_pictures.similarity_graph(embedded.rows, records, selection),
    }
    with ctx.writing(paths.DIVERSE_PROMPTS) as out:
        write_prompts(out / "prompts.jsonl", [records[position] for position in selection.selected])
        neighbours.to_parquet(out / "neighbours.parquet", index=False)
        for name, picture in pictures.items():
            picture.save(out / f"{name}.png")
            ctx.image(picture, f"diverse_prompts/{name}")
    ctx.report(
        {
            "prompts_before": len(records),
            "prompts": len(selection.selected),
            "threshold": selection.threshold,
            "restored_subcategories": selection.restored,
            "embedded_by_theme": embedded.by_theme,
            "cut_themes": embedded.cut_themes,
            "nearest_similarity_before": float(np.nanmean(selection.nearest_before)),
            "nearest_similarity_after": float(np.nanmean(selection.nearest_after)),
        }
    )


def _keep_all(ctx: StageContext, records: list[PromptRecord]) -> None:
    """Every prompt, without a look at how similar they are."""
    from paco_core.data.records.records import write_prompts

    ctx.log("diverse_prompts: neither target nor threshold: every prompt is kept, none is embedded")
    with ctx.writing(paths.DIVERSE_PROMPTS) as out:
        write_prompts(out / "prompts.jsonl", records)
    ctx.report({"prompts_before": len(records), "prompts": len(records)})
