"""How sure the change of an evaluation is: prompts are what varies, their seeds are averaged first."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.special import stdtrit  # quantiles of Student's t

LEVEL = 0.95


def mean_with_interval(changes: np.ndarray) -> tuple[float, float, float]:
    """Mean of changes (N,) and its 95% interval by Student's t, in the unit of the changes; NaN are left out.

    One change leaves the interval NaN, none the mean, too: there is nothing to say how far they vary.
    """
    known = changes[~np.isnan(changes)]
    if not len(known):
        return float("nan"), float("nan"), float("nan")
    mean = float(known.mean())
    if len(known) < 2:
        return mean, float("nan"), float("nan")
    half = float(stdtrit(len(known) - 1, (1 + LEVEL) / 2) * known.std(ddof=1) / np.sqrt(len(known)))
    return mean, mean - half, mean + half


def deviation(scores: np.ndarray) -> float:
    """Standard deviation of scores of any shape, NaN left out; NaN where all are alike or fewer than two are known."""
    known = scores[~np.isnan(scores)]
    return float(known.std(ddof=1)) if len(set(known.tolist())) > 1 else float("nan")


def change_intervals(
    before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]
) -> dict[str, tuple[float, float]]:
    """95% interval of the paired change of each measure, lower and upper end, in the measure's unit.

    Args:
        before, after: values of each measure, (prompts, seeds), NaN where a picture has none. A prompt with a NaN is
            left out; a measure that only one of them has has no interval.
    """
    return {
        name: mean_with_interval(np.mean(after[name] - before[name], axis=1))[1:] for name in after if name in before
    }
