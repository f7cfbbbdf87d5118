"""The figures of T2IS-Bench from a table of sets, with intervals over prompts.

A dimension's figure is its mean over the sets that have it, as the public evaluation reports it; alignment and
aesthetics are means over panels, so that a set of seven counts more than one of two. Alignment and consistency are the
means of their three columns, of those that any set has. Average = 0.2 aesthetics + 0.3 alignment + 0.5 consistency,
where all three were measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paco_core.benchmarks.statistics import Estimate
from paco_core.benchmarks.t2is_bench.texts import ASPECTS, DIMENSIONS
from paco_core.grpo.metrics import FEWEST_GROUPS, LEVEL

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

PARTS = {
    "aesthetics": ("aesthetics",),
    "alignment": tuple(name.lower() for name in ASPECTS),
    "consistency": tuple(name.lower() for name in DIMENSIONS),
}
WEIGHTS = {"aesthetics": 0.2, "alignment": 0.3, "consistency": 0.5}
BY_PANEL = ("aesthetics", "alignment")  # parts whose means count every panel alike


def figures(table: pd.DataFrame, *, resamples: int = 2000, seed: int = 0) -> dict[str, Estimate]:
    """Columns, parts and ``average`` of sets that one method painted.

    Args:
        table: one row a set: ``prompt_id``, ``panels`` (how many) and the measured columns.

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


def by_layout(
    table: pd.DataFrame, layouts: Mapping[str, str], *, resamples: int = 2000, seed: int = 0
) -> dict[str, dict[str, dict[str, Estimate]]]:
    """Layout -> method -> :func:`figures` of its sets; nothing where all prompts are of one layout.

    Args:
        table: as of :func:`figures`, with the column ``method``.
        layouts: of the prompts, by id.
    """
    names = list(dict.fromkeys(layouts.values()))
    if len(names) < 2:
        return {}
    given = table["prompt_id"].map(layouts)
    return {
        name: {
            str(method): figures(rows, resamples=resamples, seed=seed)
            for method, rows in table[given == name].groupby("method", sort=False)
        }
        for name in names
    }


def _estimate(values: np.ndarray, rows: int, prompts: int, missing: int) -> Estimate:
    tail = (1 - LEVEL) / 2
    known = prompts >= FEWEST_GROUPS
    low, high = np.nanquantile(values[1:], [tail, 1 - tail]) if known else (np.nan, np.nan)
    return Estimate(float(values[0]), float(low), float(high), rows - missing, prompts, missing)
