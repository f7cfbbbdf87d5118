"""Rewards to advantages: zero mean in every group, whatever the aggregator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from paco_core.rewards.aggregation import EPSILON, Aggregate, group_mean, group_std


@dataclass(frozen=True)
class Advantages:
    """``values`` (P, G): 0 for failed samples and throughout groups without spread."""

    values: np.ndarray
    failed: int
    zero_std_groups: int


def advantages(combined: Aggregate, std: Literal["group", "global"]) -> Advantages:
    """A = (R - group mean) / max(std, 1e-6), NaN-aware.

    Args:
        combined: rewards (P, G) from ``rewards.aggregation.aggregate``.
        std: ``group`` = of the sample's own group [the paper], ``global`` = of all samples [its code for
            text-to-image sets].
    """
    values = combined.values
    spread = group_std(values)
    flat = (spread == 0) | np.isnan(spread)
    centred = np.where(flat | np.isnan(values), 0.0, values - group_mean(values))
    valid = ~np.isnan(values)
    if combined.scale == "none" or not valid.any():
        scale = np.ones(())
    elif combined.scale == "batch":
        scale = np.std(centred[valid])
    else:
        scale = np.where(flat, 1.0, spread) if std == "group" else np.std(values[valid])
    result = centred / np.maximum(scale, EPSILON)
    return Advantages(result, int((~valid).sum()), int(flat.sum()))
