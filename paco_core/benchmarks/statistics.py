"""Means with bootstrap intervals, and paired tests that respect which cases belong together.

Ranking instances of one prompt share pictures, and pictures of one prompt share their words, so the
unit that is drawn again and again is the prompt (``groups``), not the single case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95
EXACT_GROUPS = 12  # up to 2^12 sign patterns are all tried; beyond that they are drawn

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95% bootstrap interval; ``missing`` cases (NaN) were left out of it."""

    mean: float
    low: float
    high: float
    count: int
    groups: int
    missing: int = 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Comparison:
    """Paired difference ``first - second`` and the p-value of a two-sided sign-flip test over the groups."""

    difference: Estimate
    p_value: float

    def as_dict(self) -> dict[str, Any]:
        return {**self.difference.as_dict(), "p_value": self.p_value}


def _sums(values: Floats, groups: Sequence[str] | None) -> tuple[Floats, Floats]:
    """Sum and count of the present values of each group, groups in sorted order."""
    labels: Sequence[Any] = range(len(values)) if groups is None else groups
    if len(labels) != len(values):
        raise ValueError(f"{len(values)} values, {len(labels)} group labels; one label per value is needed")
    present = ~np.isnan(values)
    if not present.any():
        return np.zeros(0), np.zeros(0)
    _, owner = np.unique(np.asarray(labels)[present], return_inverse=True)
    sums = np.bincount(owner, weights=values[present]).astype(np.float64)
    return sums, np.bincount(owner).astype(np.float64)


def estimate(
    values: ArrayLike, *, groups: Sequence[str] | None = None, resamples: int = 2000, seed: int = 0
) -> Estimate:
    """Mean of ``values`` with a percentile bootstrap interval over ``groups``.

    Args:
        values: (N,) numbers; NaN marks a case that failed, is counted and left out.
        groups: (N,) labels of what is drawn with replacement; None = each value on its own.
        resamples: bootstrap samples.
        seed: of the draws; equal inputs give equal intervals.

    Returns:
        All NaN when no value is present; an interval of NaN when there is but one group.
    """
    array = np.asarray(values, dtype=np.float64)
    sums, counts = _sums(array, groups)
    missing = int(np.isnan(array).sum())
    if not len(sums):
        return Estimate(np.nan, np.nan, np.nan, 0, 0, missing)
    mean = float(sums.sum() / counts.sum())
    if len(sums) == 1:
        return Estimate(mean, np.nan, np.nan, int(counts.sum()), 1, missing)
    draws = np.random.default_rng(seed).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=resamples)
    means = (draws @ sums) / (draws @ counts)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Estimate(mean, float(low), float(high), int(counts.sum()), len(sums), missing)


def macro_estimate(
    values: ArrayLike,
    classes: Sequence[str],
    *,
    groups: Sequence[str] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Mean over classes of the mean within each class, so that a large class counts no more than a small one.

    Args:
        classes: (N,) labels; groups are drawn across all classes, and a class that a draw leaves empty is
            left out of that draw's mean.
    """
    array = np.asarray(values, dtype=np.float64)
    present = ~np.isnan(array)
    missing = int((~present).sum())
    if not present.any():
        return Estimate(np.nan, np.nan, np.nan, 0, 0, missing)
    labels: Sequence[Any] = range(len(array)) if groups is None else groups
    _, column = np.unique(np.asarray(classes)[present], return_inverse=True)
    _, owner = np.unique(np.asarray(labels)[present], return_inverse=True)
    shape = (int(owner.max()) + 1, int(column.max()) + 1)
    sums, counts = np.zeros(shape), np.zeros(shape)
    np.add.at(sums, (owner, column), array[present])
    np.add.at(counts, (owner, column), 1.0)
    mean = float((sums.sum(axis=0) / counts.sum(axis=0)).mean())
    if shape[0] == 1:
        return Estimate(mean, np.nan, np.nan, int(present.sum()), 1, missing)
    draws = np.random.default_rng(seed).multinomial(shape[0], np.full(shape[0], 1 / shape[0]), size=resamples)
    drawn = draws @ counts
    with np.errstate(invalid="ignore"):
        means = np.nanmean(np.where(drawn > 0, (draws @ sums) / drawn, np.nan), axis=1)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Estimate(mean, float(low), float(high), int(present.sum()), shape[0], missing)


def macro_compare(
    first: ArrayLike,
    second: ArrayLike,
    classes: Sequence[str],
    *,
    groups: Sequence[str] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Paired difference of two macro means; in the test each case weighs what it weighs in the mean."""
    names = np.asarray(classes)
    difference = _differences(first, second)
    sizes = {name: int((~np.isnan(difference[names == name])).sum()) for name in np.unique(names)}
    weights = np.array([1.0 / max(1, sizes[name]) for name in names])
    draws: dict[str, Any] = {"groups": groups, "resamples": resamples, "seed": seed}
    return Comparison(macro_estimate(difference, classes, **draws), sign_flip_test(difference * weights, **draws))


def sign_flip_test(
    differences: ArrayLike, *, groups: Sequence[str] | None = None, resamples: int = 2000, seed: int = 0
) -> float:
    """Two-sided p-value of "the difference is as likely to have the other sign", flipped group by group.

    All sign patterns are tried where that is cheap (12 groups or fewer), else ``resamples`` are drawn
    and the observed pattern is counted among them, so that p is never 0. NaN without any value.
    """
    sums, _ = _sums(np.asarray(differences, dtype=np.float64), groups)
    if not len(sums):
        return float("nan")
    observed = abs(sums.sum())
    tolerance = 1e-12 * max(1.0, float(np.abs(sums).sum()))  # equal sums in another order of adding
    if len(sums) <= EXACT_GROUPS:
        signs = np.array(list(product((-1.0, 1.0), repeat=len(sums))))
        return float((np.abs(signs @ sums) >= observed - tolerance).mean())
    signs = np.random.default_rng(seed).choice((-1.0, 1.0), size=(resamples, len(sums)))
    return float((1 + (np.abs(signs @ sums) >= observed - tolerance).sum()) / (1 + resamples))


def compare(
    first: ArrayLike,
    second: ArrayLike,
    *,
    groups: Sequence[str] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Paired comparison of two methods on the same cases; a case that either failed is left out of both."""
    difference = _differences(first, second)
    draws: dict[str, Any] = {"groups": groups, "resamples": resamples, "seed": seed}
    return Comparison(estimate(difference, **draws), sign_flip_test(difference, **draws))


def _differences(first: ArrayLike, second: ArrayLike) -> Floats:
    """first - second, case by case; NaN where either is."""
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"paired values must have one shape, got {a.shape} and {b.shape}")
    return a - b


def crossed_estimate(values: ArrayLike, *, resamples: int = 2000, seed: int = 0) -> Estimate:
    """Mean of a table with an interval for another choice of its rows and of its columns, both drawn anew.

    For trainings under several seeds (rows) judged on the same prompts (columns): pigeonhole bootstrap
    (Owen 2007, arXiv 0712.1111). With one row only columns are drawn. A handful of rows makes for a rough interval.

    Args:
        values: (rows, columns) numbers; NaN marks a case that failed, is counted and left out.
    """
    table = np.atleast_2d(np.asarray(values, dtype=np.float64))
    present = ~np.isnan(table)
    missing = int((~present).sum())
    if not present.any():
        return Estimate(np.nan, np.nan, np.nan, 0, 0, missing)
    filled, (rows, columns) = np.where(present, table, 0.0), table.shape
    mean = float(filled.sum() / present.sum())
    if rows == columns == 1:
        return Estimate(mean, np.nan, np.nan, 1, 1, missing)
    rng = np.random.default_rng(seed)
    by_row = rng.multinomial(rows, np.full(rows, 1 / rows), size=resamples)
    by_column = rng.multinomial(columns, np.full(columns, 1 / columns), size=resamples)
    counts = ((by_row @ present) * by_column).sum(axis=1)
    drawn = counts > 0
    means = ((by_row @ filled) * by_column).sum(axis=1)[drawn] / counts[drawn]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Estimate(mean, float(low), float(high), int(present.sum()), columns, missing)
