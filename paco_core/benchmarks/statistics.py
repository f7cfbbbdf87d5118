"""Means and paired differences with 95% intervals that respect which cases belong together.

Rankings of one prompt share images, and images of one prompt share its text. So the bootstrap resamples prompts
(``groups``), not single cases. Values that are all 0 or 1, and differences of such values, get intervals for shares
instead: :mod:`paco_core.benchmarks.proportions`.

The interval is the only test: a difference is shown where its interval excludes zero. A p-value of another test next
to it could say the opposite. Fewer than
:data:`~paco_core.grpo.metrics.FEWEST_GROUPS` groups get no interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paco_core.benchmarks.proportions import (
    Answers,
    Interval,
    between,
    effective_cases,
    is_yes_no,
    mean_of_classes,
    wilson,
)
from paco_core.grpo.metrics import FEWEST_GROUPS, LEVEL

BOOTSTRAP, WILSON, NEWCOMBE = "bootstrap", "wilson", "newcombe"
METHODS = "Wilson's for shares of yes and no, Newcombe's for changes of such, percentile bootstrap for all else"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95% interval; ``missing`` cases (NaN) were left out of it."""

    mean: float
    low: float
    high: float
    count: int
    groups: int
    missing: int = 0
    method: str = BOOTSTRAP  # of the interval

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _Cases:
    """The cases that are there, with the number of each one's group and class."""

    values: Floats
    owners: NDArray[np.intp]
    columns: NDArray[np.intp]  # all 0 where there are no classes
    missing: int

    @classmethod
    def from_values(cls, values: Floats, groups: Sequence[str] | None, classes: Sequence[str] | None) -> _Cases:
        labels: Sequence[Any] = range(len(values)) if groups is None else groups
        if len(labels) != len(values):
            raise ValueError(f"{len(values)} values, {len(labels)} group labels; one label per value is needed")
        present = ~np.isnan(values)
        kinds: Sequence[Any] = [""] * len(values) if classes is None else classes
        owners, columns = (np.unique(np.asarray(of)[present], return_inverse=True)[1] for of in (labels, kinds))
        return cls(values[present], owners, columns, int((~present).sum()))

    def estimate(self, resamples: int, seed: int, sides: Sequence[Floats]) -> Estimate:
        """The mean of the classes' means.

        Args:
            sides: (N,) each: the values themselves, or the two that each value is the difference of.
        """
        if not len(self.values):
            return Estimate(np.nan, np.nan, np.nan, 0, 0, self.missing)
        places = [self.columns == column for column in range(int(self.columns.max()) + 1)]
        means = [float(self.values[place].mean()) for place in places]
        mean, groups = float(np.mean(means)), int(self.owners.max()) + 1
        method = BOOTSTRAP
        if groups < FEWEST_GROUPS:
            low, high = np.nan, np.nan
        elif all(map(is_yes_no, sides)) and self._groups_keep_to_a_class():
            method = WILSON if len(sides) == 1 else NEWCOMBE
            intervals = [self._of_shares([side[place] for side in sides], place) for place in places]
            low, high = intervals[0] if len(intervals) == 1 else mean_of_classes(means, intervals)
        else:
            low, high = self._drawn(groups, resamples, seed)
        return Estimate(mean, low, high, len(self.values), groups, self.missing, method)

    def _groups_keep_to_a_class(self) -> bool:
        pairs = {*zip(self.owners.tolist(), self.columns.tolist(), strict=True)}
        return len(pairs) == int(self.owners.max()) + 1

    def _of_shares(self, sides: Sequence[Floats], place: NDArray[np.bool_]) -> Interval:
        """Of one class."""
        return _of_shares(sides, effective_cases(self.values[place], self.owners[place]))

    def _drawn(self, groups: int, resamples: int, seed: int) -> Interval:
        """Percentiles of the mean of classes' means, over groups drawn with replacement."""
        shape = (groups, int(self.columns.max()) + 1)
        sums, counts = np.zeros(shape), np.zeros(shape)
        np.add.at(sums, (self.owners, self.columns), self.values)
        np.add.at(counts, (self.owners, self.columns), 1.0)
        draws = np.random.default_rng(seed).multinomial(groups, np.full(groups, 1 / groups), size=resamples)
        drawn = draws @ counts
        with np.errstate(invalid="ignore"):
            means = np.nanmean(np.where(drawn > 0, (draws @ sums) / drawn, np.nan), axis=1)
        return _percentiles(means)


def _of_shares(sides: Sequence[Floats], cases: float) -> Interval:
    """Of a share of yes, or of the difference of two, where they are worth so many independent cases."""
    if len(sides) == 1:
        return wilson(float(sides[0].mean()), cases, LEVEL)
    first, second = sides
    return Answers.counted(first, second, cases).newcombe(LEVEL)


def _percentiles(means: Floats) -> Interval:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def estimate(
    values: ArrayLike, *, groups: Sequence[str] | None = None, resamples: int = 2000, seed: int = 0
) -> Estimate:
    """Mean of ``values``, with Wilson's interval where all are 0 or 1, else a percentile bootstrap over ``groups``.

    Args:
        values: (N,) numbers; NaN marks a case that failed, is counted and left out.
        groups: (N,) labels of what is drawn with replacement; None = each value on its own.
        resamples: bootstrap samples.
        seed: of the draws; equal inputs give equal intervals.

    Returns:
        All NaN when no value is present; an interval of NaN for fewer than :data:`FEWEST_GROUPS` groups.
    """
    cases = _Cases.from_values(np.asarray(values, dtype=np.float64), groups, None)
    return cases.estimate(resamples, seed, [cases.values])


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
    cases = _Cases.from_values(np.asarray(values, dtype=np.float64), groups, classes)
    return cases.estimate(resamples, seed, [cases.values])


def macro_compare(
    first: ArrayLike,
    second: ArrayLike,
    classes: Sequence[str],
    *,
    groups: Sequence[str] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Difference first - second of two macro means, over the cases that both have (:func:`compare`)."""
    return _paired(first, second, groups, classes, resamples, seed)


def _paired(
    first: ArrayLike,
    second: ArrayLike,
    groups: Sequence[str] | None,
    classes: Sequence[str] | None,
    resamples: int,
    seed: int,
) -> Estimate:
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"paired values must have one shape, got {a.shape} and {b.shape}")
    difference = a - b
    present = ~np.isnan(difference)
    sides = [a[present], b[present]]
    return _Cases.from_values(difference, groups, classes).estimate(resamples, seed, sides)


def compare(
    first: ArrayLike,
    second: ArrayLike,
    *,
    groups: Sequence[str] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Mean of first - second over the cases that both have; a case with a NaN on either side counts as missing.

    The interval is Newcombe's where all values are 0 or 1, else a percentile bootstrap over ``groups``.

    Args:
        first, second: (N,) values of the same cases in the same order.

    Raises:
        ValueError: when the shapes differ.
    """
    return _paired(first, second, groups, None, resamples, seed)


def crossed_estimate(
    values: ArrayLike, less: ArrayLike | None = None, *, resamples: int = 2000, seed: int = 0
) -> Estimate:
    """Mean of a table with an interval for another choice of its rows and of its columns, both drawn anew.

    For trainings under several seeds (rows) judged on the same prompts (columns): pigeonhole bootstrap
    (Owen 2007, arXiv 0712.1111). With one row only columns are drawn. A handful of rows makes for a rough interval.
    Tables of 0 and 1 get Wilson's or Newcombe's interval, for as many independent cases as have the variance of
    that bootstrap.

    Args:
        values: (rows, columns) numbers; NaN marks a case that failed, is counted and left out.
        less: a table that is taken off, case by case: (rows, columns), or (columns,) for one that all rows share.
    """
    first = np.atleast_2d(np.asarray(values, dtype=np.float64))
    second = None if less is None else np.broadcast_to(np.asarray(less, dtype=np.float64), first.shape)
    table = first if second is None else first - second
    present = ~np.isnan(table)
    missing = int((~present).sum())
    if not present.any():
        return Estimate(np.nan, np.nan, np.nan, 0, 0, missing)
    known = present.any(axis=0)
    first, table, present = first[:, known], table[:, known], present[:, known]
    second = None if second is None else second[:, known]
    filled, (rows, columns) = np.where(present, table, 0.0), table.shape
    mean, count = float(filled.sum() / present.sum()), int(present.sum())
    if columns < FEWEST_GROUPS:
        return Estimate(mean, np.nan, np.nan, count, columns, missing)
    rng = np.random.default_rng(seed)
    by_row = rng.multinomial(rows, np.full(rows, 1 / rows), size=resamples)
    by_column = rng.multinomial(columns, np.full(columns, 1 / columns), size=resamples)
    counts = ((by_row @ present) * by_column).sum(axis=1)
    drawn = counts > 0
    means = ((by_row @ filled) * by_column).sum(axis=1)[drawn] / counts[drawn]
    sides = [side[present] for side in (first, second) if side is not None]
    if not all(map(is_yes_no, sides)):
        return Estimate(mean, *_percentiles(means), count, columns, missing)
    cases = between(float(table[present].var()), float(means.var()), columns, count)
    return Estimate(mean, *_of_shares(sides, cases), count, columns, missing, WILSON if len(sides) == 1 else NEWCOMBE)
