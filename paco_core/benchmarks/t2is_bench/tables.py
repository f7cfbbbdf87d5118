"""T2IS-Bench as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from paco_core.benchmarks.published import PublishedRow
from paco_core.benchmarks.t2is_bench.summary import PARTS
from paco_core.benchmarks.tables import ResultTable, interval, number

if TYPE_CHECKING:
    from paco_core.benchmarks.statistics import Estimate
    from paco_core.benchmarks.t2is_bench.measures import BenchmarkPart

COLUMNS = [name for part, columns in PARTS.items() for name in dict.fromkeys([*columns, part])]
WORDINGS = {
    "published": "asked in the benchmark's words",
    "rl": "asked in the words of the RL (template “criteria”)",
    "text": "asked the texts as they are",
}
PUBLISHED_JUDGES = {"average_qwen": "average, Qwen2.5-VL-7B", "average_gemma": "average, Gemma-3-4B-IT"}


def tables(
    figures: Mapping[str, Mapping[str, Estimate]],
    parts: Mapping[str, BenchmarkPart],
    published: Sequence[PublishedRow],
    layouts: Mapping[str, Mapping[str, Mapping[str, Estimate]]],
) -> list[ResultTable]:
    """Methods with their figures, who judged each part, and the published averages in a table of their own.

    The published averages have judges of their own and are of all 596 prompts: they never share a column with ours.

    Args:
        figures: by method.
        layouts: the same by layout, where sets have several.
    """
    rows = [[name, *_cells(row)] for name, row in figures.items()]
    notes = [
        f"{part}: {found.judge}" + (f", {WORDINGS[found.wording]}" if found.wording else "")
        for part, found in parts.items()
    ]
    missing = [part for part in PARTS if part not in parts]
    if missing:
        notes.append(f"Not measured: {', '.join(missing)}; the average needs all three parts.")
    counts = {row[name].groups for row in figures.values() for name in row}
    notes.append(
        f"Sets of {' to '.join(map(str, sorted({min(counts), max(counts)})))} prompts. "
        "Average = 0.2 aesthetics + 0.3 alignment + 0.5 consistency, with a 95% bootstrap interval over prompts."
    )
    head = ["method", *COLUMNS, "average"]
    elsewhere = [[row.model, *(number(row.figures[name]) for name in PUBLISHED_JUDGES)] for row in published]
    split = [[name, layout, *_cells(row)] for layout, methods in layouts.items() for name, row in methods.items()]
    note = "Averages on all 596 prompts of T2IS-Bench, consistency judged by the model that the column names."
    return [
        ResultTable("T2IS-Bench", head, rows, notes),
        ResultTable(
            "T2IS-Bench (published)",
            ["method", *PUBLISHED_JUDGES.values()],
            elsewhere,
            [note, *dict.fromkeys(row.source for row in published)],
        ),
        *([ResultTable("T2IS-Bench by layout", ["method", "layout", *head[1:]], split, detail=True)] if split else []),
    ]


def _cells(row: Mapping[str, Estimate]) -> list[str]:
    """The figures of a method's sets, and their average with its interval."""
    return [
        *(number(row[column].mean) if column in row else "–" for column in COLUMNS),
        interval(row["average"]) if "average" in row else "–",
    ]
