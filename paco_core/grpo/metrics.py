"""Metrics of epochs and evaluations: reward means, gaps between sizes, and paired changes with 95% intervals.

In an interval prompts are the unit that varies: their seeds are averaged first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtrit  # quantiles of Student's t

if TYPE_CHECKING:
    from paco_core.grpo.advantages import Advantages
    from paco_core.grpo.scoring import Scores
    from paco_core.rewards.aggregation import Aggregate

Row = dict[str, float]  # a metric's name and value, as a row of the log has them
LEVEL = 0.95
#: Groups that an interval needs. If all of five groups change in one direction, the exact two-sided sign test gives
#: p = 2 / 2^5 = 0.06. So no method without further assumptions can exclude zero at 95% with fewer than six.
FEWEST_GROUPS = 6


def mean_with_interval(changes: np.ndarray) -> tuple[float, float, float]:
    """Mean of changes (N,) and its 95% interval by Student's t, in the unit of the changes; NaN are left out.

    The interval is NaN for fewer than :data:`FEWEST_GROUPS` changes.
    """
    values = changes[~np.isnan(changes)]
    if not len(values):
        return float("nan"), float("nan"), float("nan")
    middle = float(values.mean())
    if len(values) < FEWEST_GROUPS:
        return middle, float("nan"), float("nan")
    half = float(stdtrit(len(values) - 1, (1 + LEVEL) / 2) * values.std(ddof=1) / np.sqrt(len(values)))
    return middle, middle - half, middle + half


def deviation(scores: np.ndarray) -> float:
    """Standard deviation of scores of any shape, NaN left out; NaN where all are equal or fewer than two are known.

    Scores that differ by no more than rounding count as equal: in units of their deviation any change would be huge.
    """
    values = scores[~np.isnan(scores)]
    if len(values) < 2 or np.ptp(values) <= 1e-9 * np.abs(values).max():
        return float("nan")
    return float(values.std(ddof=1))


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


def reward_metrics(scores: Scores, combined: Aggregate, advantages: Advantages) -> Row:
    """Means, variation and taming of each reward, their ratio, and the health of the groups."""
    metrics: Row = {f"reward/{name}": mean(values) for name, values in scores.rewards.items()}
    metrics |= {f"variation/{name}": value for name, value in combined.variation.items()}
    metrics |= {f"tamed/{name}": float(flag) for name, flag in combined.tamed.items()}
    if "consistency" in scores.rewards and "clip_t" in scores.rewards:
        metrics["reward_ratio"] = reward_ratio(scores.rewards["consistency"], scores.rewards["clip_t"])
    metrics[scores.measure] = mean(scores.diversity)
    metrics["groups/zero_std"] = float(advantages.zero_std_groups)
    metrics["groups/failed_samples"] = float(advantages.failed)
    return metrics


def reward_ratio(first: np.ndarray, second: np.ndarray) -> float:
    """Ratio of the means of two rewards (N,) over the images that have both; NaN where the second mean is zero."""
    scored = ~np.isnan(first + second)
    denominator = mean(second[scored])
    return mean(first[scored]) / denominator if denominator else math.nan


def evaluation_row(metrics: Row, scores: Mapping[str, np.ndarray], sizes: Sequence[int]) -> Row:
    """``eval/<size>/<metric>``, and ``gap/<metric>``: the last size's minus the first one's.

    Args:
        metrics, scores: of an evaluation, by ``<size>/<metric>``; scores are (prompts, seeds).
    """
    row = {f"eval/{name}": value for name, value in metrics.items()}
    return row | {f"gap/{name}": value for name, value in gaps(metrics, scores, sizes).items()}


def gaps(metrics: Row, scores: Mapping[str, np.ndarray], sizes: Sequence[int]) -> Row:
    """The difference between the first evaluation size (usually the size of the training) and the last.

    If images have scores, the difference is over the prompts that have all of them at both sizes.

    Args:
        scores: (prompts, seeds) by ``<size>/<metric>``.
    """
    return {
        name: _gap(scores[first], scores[last]) if first in scores else metrics[last] - metrics[first]
        for name, (first, last) in _pairs(metrics, sizes).items()
    }


def gap_changes(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray], sizes: Sequence[int]) -> Row:
    """Change of ``gap/<metric>`` between two evaluations, over the prompts that have all scores in both.

    Args:
        before, after: scores (prompts, seeds) by ``<size>/<metric>``.
    """
    changes: Row = {}
    for name, (first, last) in _pairs(after, sizes).items():
        if first in before and last in before:
            changes[f"gap/{name}"] = _gap_change(before[first], before[last], after[first], after[last])
    return changes


def _pairs(values: Mapping[str, object], sizes: Sequence[int]) -> dict[str, tuple[str, str]]:
    """The keys of each measure that both the first and the last size have; none for one size."""
    if len(sizes) < 2:
        return {}
    names = [name.partition("/")[2] for name in values if name.startswith(f"{sizes[0]}/")]
    pairs = {name: (f"{sizes[0]}/{name}", f"{sizes[-1]}/{name}") for name in names}
    return {name: keys for name, keys in pairs.items() if keys[1] in values}


def _gap(first: np.ndarray, last: np.ndarray) -> float:
    small, large = common(first, last)
    return mean(large) - mean(small)


def _gap_change(first: np.ndarray, last: np.ndarray, first_after: np.ndarray, last_after: np.ndarray) -> float:
    a, b, c, d = map(mean, common(first, last, first_after, last_after))
    return (d - c) - (b - a)


def evaluated(row: Mapping[str, float]) -> Row:
    """The metrics of :func:`evaluation_row`, without the gaps."""
    return {name.removeprefix("eval/"): value for name, value in row.items() if name.startswith("eval/")}


def note(row: Mapping[str, float]) -> str:
    """The rewards of an epoch in one line."""
    return ", ".join(f"{name.removeprefix('reward/')} {row[name]:.3f}" for name in row if name.startswith("reward/"))
