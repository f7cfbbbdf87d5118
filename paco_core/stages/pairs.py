"""Consistent and inconsistent pairs from the rankings, editing pairs, and the held-out benchmark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.io import paths
from paco_core.runtime.preview import Table
from paco_core.runtime.stage import Cost, Stage, library_check

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.config.params import PairsParams, Params
    from paco_core.data.pairs.characters import CharacterPairs, HeldOutCase
    from paco_core.data.pairs.imported_pairs import ImportedPairs
    from paco_core.data.pairs.leakage import HeldOut
    from paco_core.runtime.context import StageContext
    from paco_core.runtime.preview import Preview


def _cost(params: Params, root: Path) -> Cost:
    from paco_core.planning import amounts

    return Cost(f"at most {amounts.pairs(params, root)} pairs")


def _preview(data: Path, _item: str) -> dict[str, Preview]:
    """The training prompts whose pairs are most one-sided."""
    import pandas as pd

    from paco_core.io.files import read_table

    train_pairs = read_table(data / paths.PAIRS.name / "train.parquet")
    if train_pairs.empty:
        return {}
    counts = pd.crosstab([train_pairs["prompt_id"], train_pairs["theme"]], train_pairs["label"]).reset_index()
    yes = train_pairs["label"].eq("Yes").groupby(train_pairs["prompt_id"]).mean()
    counts["yes_share"] = counts["prompt_id"].map(yes)
    order = (counts["yes_share"] - 0.5).abs().sort_values(ascending=False, kind="stable").index
    return {"one_sided_prompts": Table(counts.loc[order])}


STAGE = Stage(
    cost=_cost,
    headline=(("train",), ("train_yes",), ("validation",), ("benchmark",)),
    preview=_preview,
    checks=(
        library_check("paco_core.data.checks:labels_are_balanced", "As many Yes as No"),
        library_check("paco_core.data.checks:benchmark_is_held_out", "No prompt of the benchmark is trained on"),
    ),
)


def run(ctx: StageContext) -> None:
    from paco_core.data.annotation import rankings, votes
    from paco_core.data.pairs import pairs
    from paco_core.data.pairs.characters import CHARACTERS_SHARD, HELD_OUT_CHARACTERS, held_out_table
    from paco_core.data.pairs.editing import SHARD, add_generated_edits, editing_pairs
    from paco_core.data.pairs.imported_pairs import imported_pairs
    from paco_core.data.pairs.leakage import measure_leakage, picture_md5s, prompt_contents
    from paco_core.data.records.edit_records import read_edit_prompts
    from paco_core.data.records.prompt_content import group_by_content
    from paco_core.data.records.records import read_prompts
    from paco_core.io.files import DataError, read_table, write_json
    from paco_core.io.shards import ShardReader

    params = ctx.params.pairs
    instances = read_table(ctx.read(paths.RANKINGS) / "instances.parquet", require=rankings.COLUMNS)
    annotations = votes.from_table(read_table(ctx.read(paths.ANNOTATIONS) / "rankings.parquet", require=votes.COLUMNS))
    prompts = read_prompts(ctx.read(paths.DIVERSE_PROMPTS) / "prompts.jsonl", none_allowed=True)
    md5s = picture_md5s(ShardReader.below(ctx.read(paths.GRIDS)).index)
    imported = imported_pairs(ctx.root / params.imported if params.imported else None)
    editing = editing_pairs(params.editing, ctx.root)
    edits = read_edit_prompts(ctx.read(paths.EDIT_PROMPTS), none_allowed=True)
    edit_pairs = add_generated_edits(editing, ctx.read(paths.EDITS), *edits, params.editing.questions)
    editing.rejected.print(ctx.log)
    character_pairs, held_out_cases = _character_pairs(ctx)
    joined, unranked = pairs.join(instances, {row.instance_id: row for row in annotations})
    texts = {record.idx: record.prompt for record in prompts}
    themes = [(r.idx, r.theme) for r in prompts] + [(p.prompt_id, p.theme or "") for p in imported.pairs]
    groups = group_by_content(prompt_contents(texts, themes))
    split = pairs.split_pairs(
        joined,
        params,
        editing.pairs,
        character_pairs.pairs,
        imported.pairs,
        held_out=imported.held_out,
        groups=groups,
    )
    records = {record.idx: record for record in prompts}
    parts = {"train": pairs.pair_table(split.train, records), "validation": pairs.pair_table(split.validation, records)}
    benchmark = pairs.benchmark_table(split.benchmark, records)
    leaked = measure_leakage(
        benchmark,
        parts,
        texts,
        md5s | editing.pictures.md5s | character_pairs.pictures.md5s | imported.md5s,
        *_held_out(ctx, params, benchmark, imported),
    )
    if leaked and params.leakage == "refuse":
        raise DataError(
            f"{leaked}; nothing was written. Split by prompt (pairs.split), or set pairs.leakage: report to continue"
        )
    figures = {
        "unranked_instances": unranked,
        "painted_edits": edit_pairs,
        **split.metrics(),
        "leaked_prompts": len(leaked.prompts),
        "leaked_pictures": len(leaked.pictures),
        **editing.rejected.figures("editing_rejected"),
        **character_pairs.rejected.figures("characters_rejected"),
        **({"benchmark_characters": len(held_out_cases)} if params.characters.used else {}),
    }
    rules = params.model_dump(include={"rule", "confident", "split", "leakage", "balance"})
    with ctx.writing(paths.PAIRS) as out:
        out.mkdir()
        for part, table in parts.items():
            table.to_parquet(out / f"{part}.parquet", index=False)
        benchmark.to_parquet(out / "benchmark.parquet", index=False)
        imported.write(out)
        editing.pictures.write(out / SHARD, imported.md5s.keys())
        character_pairs.pictures.write(out / CHARACTERS_SHARD, imported.md5s.keys() | editing.pictures.md5s.keys())
        if params.characters.used:
            held_out_table(held_out_cases).to_parquet(out / HELD_OUT_CHARACTERS, index=False)
        write_json(out / "summary.json", {**rules, "counts": figures})
    if leaked:
        ctx.log(f"pairs: {leaked}; pairs.leakage is 'report'")
    ctx.report(figures)


def _character_pairs(ctx: StageContext) -> tuple[CharacterPairs, list[HeldOutCase]]:
    """Drawn character pairs and those of generated stories, and the cases that no reward model is trained on."""
    from paco_core.data.pairs.character_stories import add_stories
    from paco_core.data.pairs.characters import draw_cases

    params = ctx.params.pairs
    characters = draw_cases(params.characters)
    if params.characters.stories is not None:
        stories = ctx.read(Path(params.characters.stories))
        add_stories(characters, stories, params.characters.shares, params.characters.seed)
    characters.rejected.print(ctx.log)
    return characters, characters.hold_out(params.benchmark_share, params.seed)


def _held_out(
    ctx: StageContext, params: PairsParams, benchmark: pd.DataFrame, imported: ImportedPairs
) -> tuple[HeldOut, Callable[[str], str]] | tuple[()]:
    """What must not be trained on panel by panel, and the digest to compare panels by.

    The own benchmark's grids are known by their ids; only what comes from elsewhere needs a look at the pixels.
    """
    from paco_core.data.pairs.leakage import HeldOut
    from paco_core.data.records.panels import PanelStore
    from paco_core.data.records.records import parse_ref
    from paco_core.exchange.rank_bench import read_rank_bench
    from paco_core.io.pictures import picture_digest

    if params.keep_out is None and imported.source is None:
        return ()

    panels = PanelStore.below(ctx.root / paths.GRIDS, *([imported.source.parent] if imported.source else []))
    image_refs = set(panels.grids.index.index)

    def digest(ref: str) -> str:
        return picture_digest(panels.panel(ref)) if parse_ref(ref)[0] in image_refs else ""

    held_out = HeldOut()
    if params.keep_out is not None:
        bench = read_rank_bench(ctx.root / params.keep_out)
        held_out = bench.held_out()
        ctx.log(f"pairs: {len(bench.prompts)} prompts and {len(bench.refs)} images of {params.keep_out} are kept out")
    if imported.source is not None:
        refs = set(benchmark["reference"]).union(*benchmark["candidates"])
        held_out = HeldOut(held_out.prompts, held_out.panels | {digest(ref) for ref in refs})
    return held_out, digest
