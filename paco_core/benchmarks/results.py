"""What the benchmarks share when they write their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from paco_core.rewards.base import validate_failed_share

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.benchmarks.statistics import Estimate


def flat(name: str, value: Estimate) -> dict[str, float]:
    """``name``, ``name_low`` and ``name_high``; where cases had no value, their number as ``name_missing``."""
    metrics = {name: value.mean, f"{name}_low": value.low, f"{name}_high": value.high}
    return {**metrics, f"{name}_missing": value.missing} if value.count and value.missing else metrics


def validate_measures(
    table: pd.DataFrame, measures: Sequence[str], max_failed_share: float, causes: Mapping[str, int]
) -> pd.DataFrame:
    """The table, if each policy has enough scores of each measure at each size, before and after training.

    Args:
        table: one row per image with ``policy``, ``size``, ``when`` and the measures, NaN where an image has no score.
        causes: number of failures by cause.

    Raises:
        DataError: when more than ``max_failed_share`` of the images have no score.
    """
    for cell, rows in table.groupby(["policy", "size", "when"]):
        policy, size, when = map(str, cell)
        for name in measures:
            subject = f"{name} of {policy} at {size} px, {when} training"
            validate_failed_share(int(rows[name].isna().sum()), len(rows), max_failed_share, subject, causes)
    return table
