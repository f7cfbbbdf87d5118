"""Means and paired differences with 95% intervals that respect which cases belong together.

Rankings of one prompt share images, and images of one prompt share its text. So the bootstrap resamples prompts
(``groups``), not single cases.

Values that are all 0 or 1, and differences of such values, get intervals for shares instead. With few cases that
change, a bootstrap never draws what was not seen: one edit made better and none worse of 48 gives 0.000 to 0.062, and
intervals that should cover the truth 95 times of 100 cover it 75 times. A single share gets Wilson's score interval. A
change of paired values gets Newcombe's square-and-add interval, which is made of two of those (Newcombe 1998,
Statistics in Medicine 17, 2635). Both are for independent cases. Where cases belong together in groups, they get the
effective number of cases: as many independent ones as have the same variance (the design effect of survey statistics;
Kish 1965). Intervals of classes are combined by their distances from the mean (Zou and Donner 2008, Statistics in
Medicine 27, 1693).

The interval is the only test: a difference is shown where its interval excludes zero. A p-value of another test next
to it could say the opposite. Fewer than
:data:`~paco_core.grpo.metrics.FEWEST_GROUPS` groups get no interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paco_core.grpo.metrics import FEWEST_GROUPS, LEVEL

BOOTSTRAP, WILSON, NEWCOMBE = "bootstrap", "wilson", "newcombe"
METHODS = "Wilson's for shares of yes and no, Newcombe's for changes of such, percentile bootstrap for all else"

Floats = NDArray[np.float64]
Interval = tuple[float, float]


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

    def metrics(self, name: str) -> dict[str, float]:
        """``name``, ``name_low`` and ``name_high``; where cases had no value, their number as ``name_missing``."""
        metrics = {name: self.mean, f"{name}_low": self.low, f"{name}_high": self.high}
        return {**metrics, f"{name}_missing": self.missing} if self.count and self.missing else metrics


def flat_metrics(rows: Mapping[str, Mapping[str, Estimate]]) -> dict[str, float]:
    """``<row>.<name>`` of each estimate, with the ends of its interval (:meth:`Estimate.metrics`)."""
    metrics: dict[str, float] = {}
    for key, row in rows.items():
        for name, value in row.items():
            metrics |= value.metrics(f"{key}.{name}")
    return metrics


def flat_differences(comparisons: Mapping[str, Mapping[str, Estimate]], names: Sequence[str]) -> dict[str, float]:
    """:func:`flat_metrics` of comparisons ``"first - second"``, named ``first_minus_second.<name>``."""
    return flat_metrics(
        {pair.replace(" - ", "_minus_"): {name: row[name] for name in names} for pair, row in comparisons.items()}
    )


def is_yes_no(values: Floats) -> bool:
    """Whether there is a value, and every one is 0 or 1."""
    return bool(len(values)) and bool(np.isin(values, (0.0, 1.0)).all())


def wilson(share: float, cases: float, level: float) -> Interval:
    """Wilson's score interval of a share of ``cases`` independent values (which need not be a whole number)."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    centre = share + z * z / (2 * cases)
    half = z * math.sqrt(share * (1 - share) / cases + z * z / (4 * cases * cases))
    low, high = ((centre + sign * half) / (1 + z * z / cases) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)


@dataclass(frozen=True)
class PairedShares:
    """Shares of pairs of values, which add up to 1, and how many independent pairs they are worth."""

    both_yes: float
    first: float  # only the first is yes
    second: float  # only the second is yes
    neither: float
    cases: float

    @classmethod
    def from_values(cls, first: Floats, second: Floats, cases: float) -> PairedShares:
        """(N,) values of 0 or 1 each."""
        yes, also = first == 1, second == 1
        both_yes, only_first, only_second, neither = (
            float((first_values & second_values).mean())
            for first_values in (yes, ~yes)
            for second_values in (also, ~also)
        )
        return cls(both_yes, only_first, only_second, neither, cases)

    def newcombe(self, level: float) -> Interval:
        """Interval of the share of yes among the first less that among the second."""
        shares = self.both_yes + self.first, self.both_yes + self.second
        (low1, high1), (low2, high2) = (wilson(share, self.cases, level) for share in shares)
        down, up, phi = shares[0] - low1, high1 - shares[0], self._correlation()
        down2, up2 = shares[1] - low2, high2 - shares[1]
        difference = self.first - self.second
        low = difference - math.sqrt(max(0.0, down * down - 2 * phi * down * up2 + up2 * up2))
        high = difference + math.sqrt(max(0.0, up * up - 2 * phi * up * down2 + down2 * down2))
        return max(-1.0, low), min(1.0, high)

    def _correlation(self) -> float:
        """phi of the two values; Newcombe's optional correction for continuity is left out (it makes for 99%)."""
        first, second = self.both_yes + self.first, self.both_yes + self.second
        variance = first * (1 - first) * second * (1 - second)
        return (self.both_yes * self.neither - self.first * self.second) / math.sqrt(variance) if variance > 0 else 0.0


def effective_cases(values: Floats, owners: NDArray[np.intp]) -> float:
    """As many independent cases as give the mean of (N,) values the variance that it has over groups.

    Args:
        owners: (N,) the group of each case, as numbers.
    """
    _, groups = np.unique(owners, return_inverse=True)
    sizes = np.bincount(groups)
    centred = values - values.mean()
    variance = float((np.bincount(groups, weights=centred) ** 2).sum()) / len(values) ** 2
    least = len(values) ** 2 / float((sizes.astype(np.float64) ** 2).sum())  # all cases of a group are equal
    return clipped_ratio(float((centred**2).mean()), variance, least, len(values))


def clipped_ratio(variance: float, variance_of_mean: float, least: float, most: float) -> float:
    """The ratio of two variances within bounds: ``least`` if nothing varies, ``most`` if the mean does not vary."""
    if variance <= 0:
        return least
    return most if variance_of_mean * most <= variance else max(least, variance / variance_of_mean)


def mean_of_classes(means: Sequence[float], intervals: Sequence[Interval]) -> Interval:
    """Interval of the mean of independent classes' means, from the interval of each."""
    mean, count = math.fsum(means) / len(means), len(means)
    down, up = (
        math.sqrt(math.fsum((m - interval[end]) ** 2 for m, interval in zip(means, intervals, strict=True))) / count
        for end in (0, 1)
    )
    return mean - down, mean + up


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
            low, high = self._bootstrap(groups, resamples, seed)
        return Estimate(mean, low, high, len(self.values), groups, self.missing, method)

    def _groups_keep_to_a_class(self) -> bool:
        pairs = {*zip(self.owners.tolist(), self.columns.tolist(), strict=True)}
        return len(pairs) == int(self.owners.max()) + 1

    def _of_shares(self, sides: Sequence[Floats], place: NDArray[np.bool_]) -> Interval:
        """Of one class."""
        return _of_shares(sides, effective_cases(self.values[place], self.owners[place]))

    def _bootstrap(self, groups: int, resamples: int, seed: int) -> Interval:
        """Percentiles of the mean of classes' means, over groups drawn with replacement."""
        shape = (groups, int(self.columns.max()) + 1)
        sums, counts = np.zeros(shape), np.zeros(shape)
        np.add.at(sums, (self.owners, self.columns), self.values)
        np.add.at(counts, (self.owners, self.columns), 1.0)
        draws = np.random.default_rng(seed).multinomial(groups, np.full(groups, 1 / groups), size=resamples)
        drawn_counts = draws @ counts
        with np.errstate(invalid="ignore"):
            means = np.nanmean(np.where(drawn_counts > 0, (draws @ sums) / drawn_counts, np.nan), axis=1)
        return _percentiles(means)


def _of_shares(sides: Sequence[Floats], cases: float) -> Interval:
    """Of a share of yes, or of the difference of two, where they are worth so many independent cases."""
    if len(sides) == 1:
        return wilson(float(sides[0].mean()), cases, LEVEL)
    first, second = sides
    return PairedShares.from_values(first, second, cases).newcombe(LEVEL)


def _percentiles(means: Floats) -> Interval:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def estimate(
    values: ArrayLike,
    *,
    groups: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Mean of ``values``, with Wilson's interval where all are 0 or 1, else a percentile bootstrap over ``groups``.

    Args:
        values: (N,) numbers; NaN marks a case that failed, is counted and left out.
        groups: (N,) labels of what is drawn with replacement; None = each value is a group.
        classes: (N,) labels; the mean is then over classes of the mean within each class, so that a large class counts
            no more than a small one. Groups are drawn across all classes. A class that a draw leaves empty is left out
            of that draw's mean.
        resamples: bootstrap samples.
        seed: of the draws; equal inputs give equal intervals.

    Returns:
        All NaN when no value is present; an interval of NaN for fewer than :data:`FEWEST_GROUPS` groups.
    """
    cases = _Cases.from_values(np.asarray(values, dtype=np.float64), groups, classes)
    return cases.estimate(resamples, seed, [cases.values])


def estimate_difference(
    first: ArrayLike,
    second: ArrayLike,
    *,
    groups: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Mean of first - second over the cases that both have; a case with a NaN on either side counts as missing.

    The interval is Newcombe's where all values are 0 or 1, else a percentile bootstrap over ``groups``.

    Args:
        first, second: (N,) values of the same cases in the same order.
        groups, classes: as of :func:`estimate`.

    Raises:
        ValueError: when the shapes differ.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"paired values must have one shape, got {a.shape} and {b.shape}")
    difference = a - b
    present = ~np.isnan(difference)
    sides = [a[present], b[present]]
    return _Cases.from_values(difference, groups, classes).estimate(resamples, seed, sides)


def crossed_estimate(
    values: ArrayLike, less: ArrayLike | None = None, *, resamples: int = 2000, seed: int = 0
) -> Estimate:
    """Mean of a table with an interval for another choice of its rows and of its columns, both drawn again.

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
    is_present = present.any(axis=0)
    first, table, present = first[:, is_present], table[:, is_present], present[:, is_present]
    second = None if second is None else second[:, is_present]
    filled, (rows, columns) = np.where(present, table, 0.0), table.shape
    mean, count = float(filled.sum() / present.sum()), int(present.sum())
    if columns < FEWEST_GROUPS:
        return Estimate(mean, np.nan, np.nan, count, columns, missing)
    rng = np.random.default_rng(seed)
    by_row = rng.multinomial(rows, np.full(rows, 1 / rows), size=resamples)
    by_column = rng.multinomial(columns, np.full(columns, 1 / columns), size=resamples)
    counts = ((by_row @ present) * by_column).sum(axis=1)
    is_drawn = counts > 0
    means = ((by_row @ filled) * by_column).sum(axis=1)[is_drawn] / counts[is_drawn]
    sides = [side[present] for side in (first, second) if side is not None]
    if not all(map(is_yes_no, sides)):
        return Estimate(mean, *_percentiles(means), count, columns, missing)
    cases = clipped_ratio(float(table[present].var()), float(means.var()), columns, count)
    return Estimate(mean, *_of_shares(sides, cases), count, columns, missing, WILSON if len(sides) == 1 else NEWCOMBE)
