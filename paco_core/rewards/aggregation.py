"""Aggregation of several rewards to one number per sample, before the mean of the group is subtracted.

Rewards have shape (P, G): P prompts with G images each. A sample with a NaN in any weighted reward is NaN in the result
and in every statistic. An aggregator is one function and one line in :data:`AGGREGATORS`. For every aggregator,
``grpo.advantages`` subtracts the mean of each group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from paco_core.io.files import DataError
from paco_core.rewards.function import find_function, user_code

Rewards = Mapping[str, np.ndarray]
Delta = float | Literal["mean", "median"]
EPSILON = 1e-6


@dataclass(frozen=True)
class Aggregator:
    """``combine(rewards, weights, tame) -> (P, G)``, and how the centred result is scaled afterwards.

    ``scale``: ``recipe`` = by the recipe's standard deviation (group or global), ``batch`` = by that of
    all centred samples, ``none`` = not at all.
    """

    combine: Callable[[Rewards, Mapping[str, float], Mapping[str, bool]], np.ndarray]
    scale: Literal["recipe", "batch", "none"] = "recipe"
    tames: bool = False


@dataclass(frozen=True)
class Aggregate:
    """Combined rewards (P, G), the coefficient of variation h_k of each reward, and which were tamed."""

    values: np.ndarray
    scale: Literal["recipe", "batch", "none"]
    variation: dict[str, float]
    tamed: dict[str, bool] = field(default_factory=dict)


def group_mean(values: np.ndarray) -> np.ndarray:
    """Mean of each group's valid samples, (P, 1); NaN where a group has none."""
    valid = ~np.isnan(values)
    counts = valid.sum(axis=1, keepdims=True)
    totals = np.where(valid, values, 0.0).sum(axis=1, keepdims=True)
    return np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)


def group_std(values: np.ndarray) -> np.ndarray:
    """Standard deviation of each group's valid samples, (P, 1); exactly 0 for a constant group."""
    std = np.sqrt(group_mean((values - group_mean(values)) ** 2))
    low, high = np.fmin.reduce(values, axis=1), np.fmax.reduce(values, axis=1)
    return np.where((low == high)[:, None], 0.0, std)


def normalize_groups(values: np.ndarray) -> np.ndarray:
    """(R - group mean) / max(group std, 1e-6); 0 throughout a constant group."""
    std = group_std(values)
    centred = np.where(std == 0, values * 0.0, values - group_mean(values))
    return centred / np.maximum(std, EPSILON)


def variation(values: np.ndarray) -> float:
    """h = std / mean over all valid samples of a batch (P, G); NaN for a mean of 0, up to rounding, or no sample."""
    valid = values[~np.isnan(values)]
    mean = float(valid.mean()) if valid.size else 0.0
    return float(valid.std()) / mean if abs(mean) > 1e-9 * np.abs(valid).max(initial=0.0) else float("nan")


def tamed(rewards: Rewards, h: Mapping[str, float], delta: Delta) -> dict[str, bool]:
    """Which rewards vary more than ``delta`` (PaCo-GRPO: 0.2, or the mean or median of all h_k).

    Raises:
        DataError: when a reward has values <= -1 or no positive mean, where log(1 + R) or h makes no sense.
    """
    for name, values in rewards.items():
        valid = values[~np.isnan(values)]
        if valid.size and (valid.min() <= -1.0 or valid.mean() <= 0.0):
            raise DataError(
                f"log_tame needs rewards above -1 with a positive mean; {name} has minimum "
                f"{valid.min():.4g} and mean {valid.mean():.4g}; shift it or choose another aggregator"
            )
    finite = [value for value in h.values() if not np.isnan(value)]
    if isinstance(delta, str):
        bound = float(np.mean(finite) if delta == "mean" else np.median(finite)) if finite else float("inf")
    else:
        bound = delta
    return {name: bool(value > bound) for name, value in h.items()}


def _sum(parts: Rewards, weights: Mapping[str, float]) -> np.ndarray:
    return np.sum([weights[name] * values for name, values in parts.items()], axis=0)


def _weighted_sum(rewards: Rewards, weights: Mapping[str, float], _tame: Mapping[str, bool]) -> np.ndarray:
    return _sum(rewards, weights)


def _log_tame(rewards: Rewards, weights: Mapping[str, float], tame: Mapping[str, bool]) -> np.ndarray:
    return _sum({n: np.log1p(r) if tame[n] else r for n, r in rewards.items()}, weights)


def _positive(rewards: Rewards, weights: Mapping[str, float], rule: str) -> None:
    if (total := sum(weights.values())) <= 0:
        raise DataError(f"{rule} needs weights with a positive sum; {dict(weights)} have {total:g}")
    for name, values in rewards.items():
        if np.nanmin(values, initial=np.inf) <= 0:
            raise DataError(f"{rule} needs positive rewards; {name} has minimum {np.nanmin(values):.4g}")


def _geometric_mean(rewards: Rewards, weights: Mapping[str, float], _tame: Mapping[str, bool]) -> np.ndarray:
    _positive(rewards, weights, "geometric_mean")
    return np.exp(_sum({n: np.log(r) for n, r in rewards.items()}, weights) / sum(weights.values()))


def _harmonic_mean(rewards: Rewards, weights: Mapping[str, float], _tame: Mapping[str, bool]) -> np.ndarray:
    _positive(rewards, weights, "harmonic_mean")
    return sum(weights.values()) / _sum({n: 1.0 / r for n, r in rewards.items()}, weights)


def _rank(rewards: Rewards, weights: Mapping[str, float], _tame: Mapping[str, bool]) -> np.ndarray:
    from scipy.stats import rankdata  # half a second that no other combination needs

    return _sum({n: rankdata(r, axis=1, nan_policy="omit") for n, r in rewards.items()}, weights)


def _normalised_sum(rewards: Rewards, weights: Mapping[str, float], _tame: Mapping[str, bool]) -> np.ndarray:
    return _sum({n: normalize_groups(r) for n, r in rewards.items()}, weights)


def _globally_normalised_sum(rewards: Rewards, weights: Mapping[str, float], _tame: Mapping[str, bool]) -> np.ndarray:
    return _sum({n: (r - group_mean(r)) / max(float(np.nanstd(r)), EPSILON) for n, r in rewards.items()}, weights)


AGGREGATORS = {
    "weighted_sum": Aggregator(_weighted_sum),
    "log_tame": Aggregator(_log_tame, tames=True),  # PaCo-GRPO, arXiv 2512.04784
    "geometric_mean": Aggregator(_geometric_mean),
    "harmonic_mean": Aggregator(_harmonic_mean),
    "rank": Aggregator(_rank),
    "weighted_advantage_sum": Aggregator(_normalised_sum, scale="none"),
    "weighted_advantage_sum_global": Aggregator(_globally_normalised_sum, scale="none"),  # the released code's default
    "gdpo": Aggregator(_normalised_sum, scale="batch"),  # arXiv 2601.05242
    "mo_grpo": Aggregator(_normalised_sum),  # arXiv 2509.22047
}


def _custom_aggregator(name: str) -> Aggregator:
    """A custom function of (rewards, weights), scaled by the recipe's standard deviation.

    Raises:
        DataError: if the name is neither registered nor ``module:function``.
    """
    if ":" not in name:
        raise DataError(
            f"aggregator {name!r} is unknown; choose among {', '.join(AGGREGATORS)}, or name module:function"
        )
    function = find_function(name)

    def combine(rewards: Rewards, weights: Mapping[str, float], _tame: Mapping[str, bool]) -> np.ndarray:
        with user_code(name):
            values = np.array(function(deepcopy(dict(rewards)), dict(weights)), dtype=np.float64)
        shape = next(iter(rewards.values())).shape
        if values.shape != shape:
            raise DataError(f"aggregator {name} returned shape {values.shape} for rewards of shape {shape}")
        return values

    return Aggregator(combine)


def aggregate(
    rewards: Rewards,
    weights: Mapping[str, float],
    aggregator: str,
    delta: Delta = 0.2,
) -> Aggregate:
    """Combine rewards (P, G) to one value per sample.

    Rewards of weight 0 are monitored (their h_k is logged) but not combined.

    Args:
        aggregator: key of :data:`AGGREGATORS`, or ``module:function`` of a custom function.
        delta: rewards with a larger coefficient of variation are tamed; see :func:`tamed`.

    Raises:
        ValueError: if names of weights and rewards differ, shapes differ, or all weights are 0.
        DataError: if the aggregator is unknown, or does not support the values.
    """
    if set(weights) != set(rewards):
        raise ValueError(f"weights exist for {sorted(weights)}, but rewards for {sorted(rewards)}")
    if len({values.shape for values in rewards.values()}) != 1:
        raise ValueError(f"rewards differ in shape: { {n: r.shape for n, r in rewards.items()} }")
    rule = AGGREGATORS.get(aggregator) or _custom_aggregator(aggregator)
    weighted = {n: r for n, r in rewards.items() if weights[n] != 0}
    if not weighted:
        raise ValueError("every reward has weight 0, so nothing would be learned")
    failed = np.any([np.isnan(r) for r in weighted.values()], axis=0)
    valid = {n: np.where(failed, np.nan, r) for n, r in weighted.items()}
    h = {n: variation(np.where(failed, np.nan, r)) for n, r in rewards.items()}
    flags = tamed(valid, {n: h[n] for n in valid}, delta) if rule.tames else {}
    values = rule.combine(valid, {n: weights[n] for n in valid}, flags)
    return Aggregate(values, rule.scale, h, flags)
