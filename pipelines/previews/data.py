"""What the pages of the data assets show: the cases that a person should look at first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paco_core.io.files import read_table
from pipelines.previews.tables import chart, pictures, table

SHEET, COLUMNS = 12, 6
PARTS = ("train", "validation")


def diversity(data: Path, _item: str) -> dict[str, Any]:
    """Both charts, and the kept prompts with the nearest neighbour among the kept: the least diverse of the subset."""
    from paco_core.data.records.records import read_prompts

    if not (data / "diverse_prompts" / "neighbours.parquet").is_file():
        return {}  # every prompt was kept, without a look
    themes = {record.idx: record.theme for record in read_prompts(data / "diverse_prompts" / "prompts.jsonl")}
    found = read_table(data / "diverse_prompts" / "neighbours.parquet")
    found = found[found["idx"].isin(themes)].sort_values("nearest_after", ascending=False, kind="stable")
    return {
        **{name: chart(data / "diverse_prompts" / f"{name}.png") for name in ("nearest_similarity", "graph")},
        "closest_prompts": table(found.assign(theme=found["idx"].map(themes))),
    }


def grids(data: Path, item: str) -> dict[str, Any]:
    """Pictures of this shard at even distances."""
    from paco_core.io.shards import ShardReader

    reader = ShardReader([data / "grids" / f"shard-{item}"])
    ids = list(reader.index["id"])
    if not ids:
        return {}
    chosen = ids[:: max(1, len(ids) // SHEET)][:SHEET]
    return {"contact_sheet": pictures([reader.read(name) for name in chosen], COLUMNS, f"shard {item}")}


def edits(data: Path, _item: str) -> dict[str, Any]:
    """References, each beside what a base editor made of it."""
    from paco_core.data.pairs.painted_edits import read_painted
    from paco_core.data.records.edit_records import read_edit_prompts

    records, reference = read_edit_prompts(data / "edit_prompts", none_allowed=True)
    known = {record.idx: record for record in records}
    painted, reader = read_painted(data / "edits")
    if not painted:
        return {}
    chosen = painted[:: max(1, len(painted) // SHEET)][:SHEET]
    shown = [picture for edit in chosen for picture in (reference(known[edit.prompt_id]), reader.read(edit.id))]
    return {"reference_and_painted": pictures(shown, COLUMNS, "reference and painted edit, alternating")}


def least_certain_rankings(data: Path, _item: str) -> dict[str, Any]:
    """Rankings whose best and worst candidate lie closest: the annotator could hardly tell them apart."""
    found = read_table(data / "annotations" / "rankings.parquet")
    if found.empty:
        return {}
    if "scores" not in found or found["scores"].map(lambda scores: scores is None or len(scores) == 0).any():
        return {"rankings": table(found)}
    spread = found["scores"].map(lambda scores: float(max(scores) - min(scores)))
    return {"least_certain_rankings": table(found.assign(spread=spread).sort_values("spread", kind="stable"))}


def one_sided_prompts(data: Path, _item: str) -> dict[str, Any]:
    """The training prompts whose pairs are most one-sided."""
    import pandas as pd

    found = read_table(data / "pairs" / "train.parquet")
    if found.empty:
        return {}
    counts = pd.crosstab([found["prompt_id"], found["theme"]], found["label"]).reset_index()
    yes = found["label"].eq("Yes").groupby(found["prompt_id"]).mean()
    counts["yes_share"] = counts["prompt_id"].map(yes)
    order = (counts["yes_share"] - 0.5).abs().sort_values(ascending=False, kind="stable").index
    return {"one_sided_prompts": table(counts.loc[order])}


def answers(data: Path, _item: str) -> dict[str, Any]:
    """A few answers as the model will learn them, and the pairs that got none, with the cause."""
    import pandas as pd

    folder = data / "cot_labels"
    failed = pd.concat([read_table(folder / f"{part}_failed.parquet").assign(part=part) for part in PARTS])
    shown: dict[str, Any] = {"answers": table(read_table(folder / "train.parquet")[["theme", "label", "answer"]], 5)}
    if len(failed):
        shown["without_answer"] = table(failed[["part", "pair_id", "label", "cause"]])
    return shown


SHOWN = {
    "diverse_prompts": diversity,
    "grids": grids,
    "edits": edits,
    "annotations": least_certain_rankings,
    "pairs": one_sided_prompts,
    "cot_labels": answers,
}
