"""Yes or No with one to three reasons for every pair."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from paco_core.io import paths
from paco_core.runtime.preview import Table
from paco_core.runtime.stage import BASE_GB, LIGHT_GB, Cost, Stage, library_check

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from paco_core.config.params import Params
    from paco_core.runtime.context import StageContext
    from paco_core.runtime.preview import Preview

PARTS = ("train", "validation")


def _cost(params: Params, root: Path) -> Cost:
    from paco_core.planning import amounts

    answers = amounts.pairs(params, root)
    memory = BASE_GB if params.cot_labels.engine == "storybook" else LIGHT_GB
    return Cost(f"at most {answers} answers", memory, amounts.writing_seconds(params.cot_labels.engine))


def _preview(data: Path, _item: str) -> dict[str, Preview]:
    """A few answers as the model will learn them, and the pairs that got none, with the cause."""
    import pandas as pd

    from paco_core.io.files import read_table

    folder = data / paths.COT_LABELS.name
    failed = pd.concat([read_table(folder / f"{part}_failed.parquet").assign(part=part) for part in PARTS])
    previews: dict[str, Preview] = {
        "answers": Table(read_table(folder / "train.parquet")[["theme", "label", "answer"]], rows=5)
    }
    if len(failed):
        previews["without_answer"] = Table(failed[["part", "pair_id", "label", "cause"]])
    return previews


STAGE = Stage(
    cost=_cost,
    headline=(("train_answers",), ("train_failed",)),
    preview=_preview,
    checks=(
        library_check("paco_core.data.checks:answers_agree_with_labels", "Every answer starts with its pair's label"),
    ),
)


def run(ctx: StageContext) -> None:
    from paco_core.data.pairs.pairs import COLUMNS
    from paco_core.data.pairs.reasons import explain_pairs
    from paco_core.data.records.panels import PanelStore
    from paco_core.io.files import read_table

    source = ctx.read(paths.PAIRS)
    tables = {part: read_table(source / f"{part}.parquet", require=COLUMNS) for part in ("train", "validation")}
    panels, params = PanelStore.below(ctx.read(paths.GRIDS), source), ctx.params.cot_labels
    unit = "panels" if params.engine == "storybook" else "pairs"
    image_refs = [
        set(table["first"]) | set(table["second"]) if unit == "panels" else table for table in tables.values()
    ]
    with ctx.progress(sum(map(len, image_refs)), unit) as progress:
        explained = {
            part: explain_pairs(table, panels, params, ctx.root, progress.advance) for part, table in tables.items()
        }
    with ctx.writing(paths.COT_LABELS) as out:
        out.mkdir()
        for part, explanations in explained.items():
            explanations.table.to_parquet(out / f"{part}.parquet", index=False)
            explanations.failed.to_parquet(out / f"{part}_failed.parquet", index=False)
    causes: dict[str, Any] = {
        f"failed_{cause}": n for cause, n in sum((e.causes for e in explained.values()), Counter[str]()).items()
    }
    ctx.report(
        {f"{part}_answers": len(explanations.table) for part, explanations in explained.items()}
        | {f"{part}_failed": len(explanations.failed) for part, explanations in explained.items()}
        | sum((explanations.figures for explanations in explained.values()), Counter[str]()),
        **causes,
    )
