"""Scores of single samples that a run logged, and the paired difference of two runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from paco_core.benchmarks.statistics import Estimate, compare
from paco_core.io.files import read_json, read_table

EVALUATION = "evaluation.json"  # of a training: scores of each image before and after
TABLES = "tables"  # of a benchmark: one folder per stage, with a table of its cases

#: Scores by metric, indexed by the group that a case belongs to and by the case.
Samples = Mapping[str, "pd.Series[float]"]


def read_samples(folder: Path) -> Samples:
    """The scores in the artifacts of one run, by the names of the metrics that are their means.

    Raises:
        DataError: when a file is damaged.
    """
    samples: dict[str, pd.Series[float]] = {}
    if (folder / EVALUATION).is_file():
        samples |= _of_training(read_json(folder / EVALUATION))
    for file in sorted((folder / TABLES).glob("*/per_*.parquet")):
        samples |= _of_benchmark(file.parent.name, read_table(file))
    return samples


def _of_training(evaluation: Mapping[str, Any]) -> Iterator[tuple[str, pd.Series[float]]]:
    """``eval/64/x``, the score before training, and ``change/64/x``."""
    cases = pd.MultiIndex.from_product([evaluation["prompts"], evaluation["seeds"]])
    before, after = (
        {name: pd.Series([score for row in rows for score in row], cases, dtype=float) for name, rows in scores.items()}
        for scores in (evaluation["before"], evaluation["after"])
    )
    for name, scores in after.items():
        yield f"eval/{name}", scores
        if name in before:
            yield f"policies/eval.{name.replace('/', '.')}.before", before[name]
            yield f"change/{name}", scores - before[name]


def _of_benchmark(stage: str, table: pd.DataFrame) -> Iterator[tuple[str, pd.Series[float]]]:
    """``<stage>/<policy>.px<size>.<measure>.<when>`` and its change, or ``<stage>/<method>.<measure>``."""
    if "panels" in table and table["panels"].nunique() > 1:
        return  # means that weigh sets by their panels
    group = "picture" if "picture" in table else "prompt_id"
    case = "instance_id" if "instance_id" in table else "seed"
    if group not in table or case not in table:
        return
    table = table.set_index([table[group].astype(str), table["prompt_id"].astype(str) + " " + table[case].astype(str)])
    measures = list(table.select_dtypes("float"))
    if "policy" not in table:
        for method, rows in table.groupby("method"):
            yield from ((f"{stage}/{method}.{name}", rows[name]) for name in measures)
        return
    for (policy, size), rows in table.groupby(["policy", "size"]):
        sides = {str(when): part[measures] for when, part in rows.groupby("when")}
        for name in measures:
            key = f"{stage}/{policy}.px{size}.{name}"
            yield from ((f"{key}.{when}", part[name]) for when, part in sides.items())
            if {"before", "after"} <= sides.keys():
                yield f"{key}.change", sides["after"][name] - sides["before"][name]


def paired_difference(first: pd.Series[float], second: pd.Series[float]) -> Estimate:
    """Mean of first - second over the cases that both runs have, with its 95% interval over groups.

    A case that only one of them has counts as missing.
    """
    both = first.to_frame("first").join(second.to_frame("second"), how="outer")
    groups = [str(group) for group, _ in both.index]
    return compare(both["first"].to_numpy(), both["second"].to_numpy(), groups=groups)
