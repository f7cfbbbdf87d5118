"""How certain the change of an evaluation is: prompts are what varies, their seeds are averaged first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit  # quantiles of Student's t

LEVEL = 0.95
#: Groups that an interval needs. If all of five groups change in one direction, the exact two-sided sign test gives
#: p = 2 / 2^5 = 0.06. So no method without further assumptions can exclude zero at 95% with fewer than six.
FEWEST_GROUPS = 6


def mean_with_interval(changes: np.ndarray) -> tuple[float, float, float]:
    """Mean of changes (N,) and its 95% interval by Student's t, in the unit of the changes; NaN are left out.

    The interval is NaN for fewer than :data:`FEWEST_GROUPS` changes.
    """
    known = changes[~np.isnan(changes)]
    if not len(known):
        return float("nan"), float("nan"), float("nan")
    middle = float(known.mean())
    if len(known) < FEWEST_GROUPS:
        return middle, float("nan"), float("nan")
    half = float(stdtrit(len(known) - 1, (1 + LEVEL) / 2) * known.std(ddof=1) / np.sqrt(len(known)))
    return middle, middle - half, middle + half


def deviation(scores: np.ndarray) -> float:
    """Standard deviation of scores of any shape, NaN left out; NaN where all are equal or fewer than two are known.

    Scores that differ by no more than rounding count as equal: in units of their deviation any change would be huge.
    """
    known = scores[~np.isnan(scores)]
    if len(known) < 2 or np.ptp(known) <= 1e-9 * np.abs(known).max():
        return float("nan")
    return float(known.std(ddof=1))


@dataclass(frozen=True)
class EvaluationChange:
    """Change of a measure over the prompts that have all scores before and after, with its 95% interval."""

    mean: float
    low: float
    high: float
    missing: int  # prompts that lack a score

    def row(self) -> dict[str, float]:
        """The values by the suffixes of their metrics; ``_missing`` where prompts lack a score."""
        row = {"": self.mean, "_low": self.low, "_high": self.high}
        return {**row, "_missing": float(self.missing)} if self.missing else row


def common(*scores: np.ndarray) -> list[np.ndarray]:
    """The rows of scores (prompts, seeds) in which none of them is NaN: the prompts that means can be compared over."""
    complete = ~np.isnan(sum(scores)).any(axis=1)
    return [values[complete] for values in scores]


def mean(values: np.ndarray) -> float:
    """Mean of values of any shape, NaN left out; NaN where there are none."""
    return float(np.nanmean(values)) if not np.isnan(values).all() else float("nan")


def paired_change(before: np.ndarray, after: np.ndarray) -> EvaluationChange:
    """The change over common prompts, in the measure's unit.

    Args:
        before, after: scores (prompts, seeds), NaN where an image has none.

    Returns:
        All NaN without a common prompt. If all scores lie from 0 to 1, so that no change is larger than 1, the
        interval ends at -1 and 1.
    """
    old, new = common(before, after)
    _, low, high = mean_with_interval(np.mean(new - old, axis=1))
    if np.all((old >= 0) & (old <= 1) & (new >= 0) & (new <= 1)):
        low, high = float(np.maximum(low, -1.0)), float(np.minimum(high, 1.0))
    return EvaluationChange(mean(new) - mean(old), low, high, len(before) - len(old))


def paired_changes(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> dict[str, EvaluationChange]:
    """:func:`paired_change` of each measure that both evaluations have, by name; scores are (prompts, seeds)."""
    return {name: paired_change(before[name], after[name]) for name in after if name in before}
