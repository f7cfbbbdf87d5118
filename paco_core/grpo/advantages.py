"""Rewards to advantages: zero mean in every group, whatever the aggregator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from paco_core.rewards.aggregation import EPSILON, Aggregate, group_mean, group_std


@dataclass(frozen=True)
class Advantages:
    """``values`` (P, G): 0 for failed samples, and for groups whose rewards are all equal."""

    values: np.ndarray
    failed: int
    zero_std_groups: int


def advantages(combined: Aggregate, std: Literal["group", "global"]) -> Advantages:
    """A = (R - group mean) / max(std, 1e-6), NaN-aware.

    Args:
        combined: rewards (P, G) from ``rewards.aggregation.aggregate``.
        std: ``group`` = standard deviation of the sample's group (as in the paper), ``global`` = of all samples (as in
            its code for text-to-image sets).
    """
    values = combined.values
    stds = group_std(values)
    flat = (stds == 0) | np.isnan(stds)
    centred = np.where(flat | np.isnan(values), 0.0, values - group_mean(values))
    valid = ~np.isnan(values)
    if combined.scale == "none" or not valid.any():
        scale = np.ones(())
    elif combined.scale == "batch":
        scale = np.std(centred[valid])
    else:
        scale = np.where(flat, 1.0, stds) if std == "group" else np.std(values[valid])
    result = centred / np.maximum(scale, EPSILON)
    return Advantages(result, int((~valid).sum()), int(flat.sum()))
