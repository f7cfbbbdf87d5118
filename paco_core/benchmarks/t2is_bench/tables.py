"""Results of T2IS-Bench: means with intervals over prompts, and tables.

A dimension's mean is over the sets that have it, as the public evaluation reports it; alignment and aesthetics are
means over panels, so that a set of seven counts more than one of two. Alignment and consistency are the means of their
three columns, of those that any set has. Average = 0.2 aesthetics + 0.3 alignment + 0.5 consistency, where all three
were measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from paco_core.benchmarks.published import PublishedRow
from paco_core.benchmarks.statistics import Estimate
from paco_core.benchmarks.t2is_bench.questions import ASPECTS, DIMENSIONS
from paco_core.benchmarks.tables import ResultTable, interval, number
from paco_core.grpo.metrics import FEWEST_GROUPS, LEVEL

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.benchmarks.t2is_bench.evaluators import BenchmarkPart

PARTS = {
    "aesthetics": ("aesthetics",),
    "alignment": tuple(name.lower() for name in ASPECTS),
    "consistency": tuple(name.lower() for name in DIMENSIONS),
}
WEIGHTS = {"aesthetics": 0.2, "alignment": 0.3, "consistency": 0.5}
BY_PANEL = ("aesthetics", "alignment")  # parts whose means count every panel alike
COLUMNS = [name for part, columns in PARTS.items() for name in dict.fromkeys([*columns, part])]
WORDINGS = {
    "published": "asked in the benchmark's words",
    "rl": "asked in the words of the RL (template “criteria”)",
    "text": "asked the texts as they are",
}
PUBLISHED_JUDGES = {"average_qwen": "average, Qwen2.5-VL-7B", "average_gemma": "average, Gemma-3-4B-IT"}


def estimate_sets(table: pd.DataFrame, *, resamples: int = 2000, seed: int = 0) -> dict[str, Estimate]:
    """Columns, parts and ``average`` of the sets of one method.

    Args:
        table: one row per set: ``prompt_id``, ``panels`` (how many) and the measured columns.

    Returns:
        By name; what was not measured is left out.
    """
    prompts, owner = np.unique(table["prompt_id"].to_numpy(), return_inverse=True)
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(len(prompts), np.full(len(prompts), 1 / len(prompts)), size=resamples)
    draws = np.vstack([np.ones((1, len(prompts))), weights])  # the first row is the sample itself
    means: dict[str, np.ndarray] = {}
    missing: dict[str, int] = {}
    groups: dict[str, int] = {}  # prompts with a value
    for part, columns in PARTS.items():
        for column in (name for name in columns if name in table):
            values = table[column].to_numpy(dtype="float64")
            size = np.where(np.isnan(values), 0.0, table["panels"] if part in BY_PANEL else 1.0)
            missing[column] = int((size == 0).sum())
            if missing[column] == len(values):
                continue
            sums = np.bincount(owner, weights=np.nan_to_num(values) * size, minlength=len(prompts))
            counts = np.bincount(owner, weights=size, minlength=len(prompts))
            groups[column] = int((counts > 0).sum())
            with np.errstate(invalid="ignore"):
                means[column] = (draws @ sums) / (draws @ counts)
        measured = [column for column in columns if column in means]
        if measured and part not in means:
            means[part] = np.mean([means[name] for name in measured], axis=0)
            groups[part] = min(groups[name] for name in measured)
    if all(part in means for part in WEIGHTS):
        means["average"] = sum((weight * means[part] for part, weight in WEIGHTS.items()), np.zeros(len(draws)))
        groups["average"] = min(groups[part] for part in WEIGHTS)
    return {name: _estimate(values, len(table), groups[name], missing.get(name, 0)) for name, values in means.items()}


def estimate_layouts(
    table: pd.DataFrame, layouts: Mapping[str, str], *, resamples: int = 2000, seed: int = 0
) -> dict[str, dict[str, dict[str, Estimate]]]:
    """Layout -> method -> :func:`estimate_sets` of its sets; nothing where all prompts are of one layout.

    Args:
        table: as of :func:`estimate_sets`, with the column ``method``.
        layouts: of the prompts, by id.
    """
    names = list(dict.fromkeys(layouts.values()))
    if len(names) < 2:
        return {}
    column = table["prompt_id"].map(layouts)
    return {
        name: {
            str(method): estimate_sets(rows, resamples=resamples, seed=seed)
            for method, rows in table[column == name].groupby("method", sort=False)
        }
        for name in names
    }


def _estimate(values: np.ndarray, rows: int, prompts: int, missing: int) -> Estimate:
    tail = (1 - LEVEL) / 2
    has_enough = prompts >= FEWEST_GROUPS
    low, high = np.nanquantile(values[1:], [tail, 1 - tail]) if has_enough else (np.nan, np.nan)
    return Estimate(float(values[0]), float(low), float(high), rows - missing, prompts, missing)


def t2is_bench_tables(
    estimates: Mapping[str, Mapping[str, Estimate]],
    parts: Mapping[str, BenchmarkPart],
    published: Sequence[PublishedRow],
    layouts: Mapping[str, Mapping[str, Mapping[str, Estimate]]],
) -> list[ResultTable]:
    """Methods with their means, the model of each part, and the published averages in a separate table.

    Other models scored the published averages, on all 596 prompts: they never share a column with ours.

    Args:
        estimates: by method.
        layouts: the same by layout, where sets have several.
    """
    rows = [[name, *_cells(row)] for name, row in estimates.items()]
    notes = [
        f"{name}: {part.judge}" + (f", {WORDINGS[part.wording]}" if part.wording else "")
        for name, part in parts.items()
    ]
    missing = [part for part in PARTS if part not in parts]
    if missing:
        notes.append(f"Not measured: {', '.join(missing)}; the average needs all three parts.")
    counts = {row[name].groups for row in estimates.values() for name in row}
    notes.append(
        f"Sets of {' to '.join(map(str, sorted({min(counts), max(counts)})))} prompts. "
        "Average = 0.2 aesthetics + 0.3 alignment + 0.5 consistency, with a 95% bootstrap interval over prompts."
    )
    head = ["method", *COLUMNS, "average"]
    published_rows = [[row.model, *(number(row.figures[name]) for name in PUBLISHED_JUDGES)] for row in published]
    split = [[name, layout, *_cells(row)] for layout, methods in layouts.items() for name, row in methods.items()]
    note = "Averages on all 596 prompts of T2IS-Bench, consistency judged by the model that the column names."
    return [
        ResultTable("T2IS-Bench", head, rows, notes),
        ResultTable(
            "T2IS-Bench (published)",
            ["method", *PUBLISHED_JUDGES.values()],
            published_rows,
            [note, *dict.fromkeys(row.source for row in published)],
        ),
        *([ResultTable("T2IS-Bench by layout", ["method", "layout", *head[1:]], split, detail=True)] if split else []),
    ]


def _cells(row: Mapping[str, Estimate]) -> list[str]:
    """The means of a method's sets, and their average with its interval."""
    return [
        *(number(row[column].mean) if column in row else "–" for column in COLUMNS),
        interval(row["average"]) if "average" in row else "–",
    ]
