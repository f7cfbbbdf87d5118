"""The verb ``paco dataset``: export, import, and tracing an ID to its grid, seed and prompt."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.config.params import PARAMS_FILE, load
from paco_core.data.records.panels import PanelStore
from paco_core.data.records.records import parse_ref, read_prompts
from paco_core.exchange import card, gedit_bench, imported, mmrb2, omniref, rank_bench, sharegpt, tables, vistory
from paco_core.exchange.panel_files import PanelWriter
from paco_core.io import paths
from paco_core.io.answer import Answer
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError, read_table, write_text
from paco_core.io.secrets import redacted
from paco_core.io.targets import checked
from paco_core.io.text_table import text_table
from paco_core.models.licence import licence_of

if TYPE_CHECKING:
    import pandas as pd

SPLITS = ("train", "validation")
IMPORTS = {
    "paco_dataset": imported.import_pairs,
    "rank_bench": imported.import_benchmark,
    "gedit": gedit_bench.import_gedit,
    "vistory": vistory.import_vistory,
    "mmrb2": mmrb2.import_mmrb2,
    "omniref": omniref.import_omniref,
}


def export(root: Path, form: str, folder: Path, licence: str) -> Answer:
    """Write the data set with its card, or the generated stories, to a new folder. Returns the counts as text.

    Raises:
        DataError: if the folder exists, an output of a stage is missing, or no generated set is a story.
    """
    checked(folder, "new folder")
    if form == "vistory":
        return _stories(root, folder)
    params = load(root / PARAMS_FILE)
    panels = PanelStore.below(root / paths.GRIDS, root / paths.PAIRS)
    benchmark = read_table(root / paths.PAIRS / "benchmark.parquet")
    pairs = {split: read_table(root / paths.COT_LABELS / f"{split}.parquet") for split in SPLITS}
    with atomic(folder) as part:
        part.mkdir()
        pictures = PanelWriter(part, panels.panel)
        if form == "paco_dataset":
            sharegpt.write_sharegpt(part, pairs, pictures, params.reward.template)
        elif form == "rank_bench":
            prompts = read_prompts(root / paths.DIVERSE_PROMPTS / "prompts.jsonl")
            rank_bench.write_rank_bench(part, benchmark, prompts, panels.grids.index, pictures)
        else:
            tables.write_parquet_tables(part, pairs, benchmark, panels.panel)
        generator = licence_of(root / params.grids.model)
        write_text(part / "README.md", redacted(card.build_card(root, params, form, licence, generator)))
    counts = {split: len(table) for split, table in pairs.items()} if form != "rank_bench" else {}
    parts = [f"{count} {split} pairs" for split, count in counts.items()]
    if form != "paco_dataset":
        counts["rankings"] = len(benchmark)
        parts.append(f"{len(benchmark)} rankings")
    return Answer(f"{folder}: {', '.join(parts)}, README.md", {"folder": folder, **counts})


def _stories(root: Path, folder: Path) -> Answer:
    """Write the stories of ``t2is`` in the folders that the evaluation of ViStoryBench reads."""
    from paco_core.benchmarks.vistory import write_outputs  # it imports torch

    with atomic(folder) as part:
        part.mkdir()
        counts = write_outputs(root / paths.T2IS, part, datetime.now(UTC))
    return Answer(f"{folder}: {counts['stories']} stories, {counts['pictures']} images", {"folder": folder, **counts})


def import_dataset(form: str, folder: Path, out: Path) -> Answer:
    """Import public data into a new folder that paco can read. Returns the counts as text.

    Raises:
        DataError: if ``out`` exists, or no row can be used.
    """
    checked(out, "new folder")
    counts = IMPORTS[form](folder, out)
    return Answer(f"{out}: " + ", ".join(f"{n} {count}" for n, count in counts.items()), {"folder": out, **counts})


def trace(root: Path, item_id: str) -> Answer:
    """The grids, seeds and prompts of the panels of a pair or a ranking instance.

    Raises:
        DataError: if no table has the id.
    """
    refs = _refs(root, item_id)
    index = PanelStore.below(root / paths.GRIDS, root / paths.PAIRS).grids.index
    prompts = {record.idx: record for record in read_prompts(root / paths.DIVERSE_PROMPTS / "prompts.jsonl")}
    rows, panels = [], []
    for role, ref in refs:
        grid_id, panel = parse_ref(ref)
        grid: Any = index.loc[grid_id]
        origin = f"panel {panel} of grid {grid_id} in {Path(str(grid['folder'])).name}, seed {grid['seed']}"
        panels.append(
            {"role": role, "grid": grid_id, "panel": panel, **{k: str(grid[k]) for k in ("seed", "prompt_id")}}
        )
        rows.append((role, f"{origin}, prompt {grid['prompt_id']}"))
    lines = [item_id, *text_table(rows, indent="  ")]
    for prompt_id in dict.fromkeys(str(index.loc[parse_ref(ref)[0], "prompt_id"]) for _, ref in refs):
        if prompt_id in prompts:
            lines.append(f"  prompt {prompt_id}: {prompts[prompt_id].prompt}")
    texts = {
        prompt_id: record.prompt
        for prompt_id, record in prompts.items()
        if any(p["prompt_id"] == prompt_id for p in panels)
    }
    return Answer("\n".join(lines), {"id": item_id, "panels": panels, "prompts": texts})


def _refs(root: Path, item_id: str) -> list[tuple[str, str]]:
    for split in SPLITS:
        for row in _rows(read_table(root / paths.PAIRS / f"{split}.parquet"), "pair_id", item_id):
            return [("first", row["first"]), ("second", row["second"])]
    for row in _rows(read_table(root / paths.RANKINGS / "instances.parquet"), "instance_id", item_id):
        return [("reference", row["reference"]), *(("candidate", ref) for ref in row["candidates"])]
    raise DataError(f"{item_id}: no pair and no ranking instance has this id")


def _rows(table: pd.DataFrame, column: str, value: str) -> list[dict[Any, Any]]:
    return table[table[column] == value].to_dict("records")
