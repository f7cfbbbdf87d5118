"""Intervals for shares of yes and no, where the percentile bootstrap fails.

With few cases that change, a bootstrap never draws what was not seen: one edit made better and none worse of 48
gives 0.000 to 0.062, and intervals that should hold 95 times of 100 hold 75 times. A single share gets Wilson's score
interval, a change of paired answers Newcombe's square-and-add interval, which is made of two of those (Newcombe 1998,
Statistics in Medicine 17, 2635). Both are written for independent cases. Where cases belong together in groups, they
are given the effective number of cases: as many independent ones as have the same variance (the design effect of
survey statistics; Kish 1965). Intervals of classes are put together by their distances from the mean (Zou and Donner
2008, Statistics in Medicine 27, 1693).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Interval = tuple[float, float]


def is_yes_no(values: Floats) -> bool:
    """Whether there is a value, and every one is 0 or 1."""
    return bool(len(values)) and bool(np.isin(values, (0.0, 1.0)).all())


def wilson(share: float, cases: float, level: float) -> Interval:
    """Wilson's score interval of a share of ``cases`` independent answers (which need not be a whole number)."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    centre = share + z * z / (2 * cases)
    half = z * math.sqrt(share * (1 - share) / cases + z * z / (4 * cases * cases))
    low, high = ((centre + sign * half) / (1 + z * z / cases) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)


@dataclass(frozen=True)
class Answers:
    """Shares of pairs of answers, which add up to 1, and how many independent pairs they are worth."""

    both: float
    first: float  # only the first is yes
    second: float  # only the second is yes
    neither: float
    cases: float

    @classmethod
    def counted(cls, first: Floats, second: Floats, cases: float) -> Answers:
        """(N,) answers of 0 or 1 each."""
        yes, also = first == 1, second == 1
        both, only_first, only_second, neither = (
            float((one & two).mean()) for one in (yes, ~yes) for two in (also, ~also)
        )
        return cls(both, only_first, only_second, neither, cases)

    def newcombe(self, level: float) -> Interval:
        """Interval of the share of yes among the first less that among the second."""
        shares = self.both + self.first, self.both + self.second
        (low1, high1), (low2, high2) = (wilson(share, self.cases, level) for share in shares)
        down, up, phi = shares[0] - low1, high1 - shares[0], self._correlation()
        down2, up2 = shares[1] - low2, high2 - shares[1]
        difference = self.first - self.second
        low = difference - math.sqrt(max(0.0, down * down - 2 * phi * down * up2 + up2 * up2))
        high = difference + math.sqrt(max(0.0, up * up - 2 * phi * up * down2 + down2 * down2))
        return max(-1.0, low), min(1.0, high)

    def _correlation(self) -> float:
        """phi of the two answers; Newcombe's optional correction for continuity is left out (it makes for 99%)."""
        first, second = self.both + self.first, self.both + self.second
        spread = first * (1 - first) * second * (1 - second)
        return (self.both * self.neither - self.first * self.second) / math.sqrt(spread) if spread > 0 else 0.0


def effective_cases(values: Floats, owners: NDArray[np.intp]) -> float:
    """As many independent cases as give the mean of (N,) values the variance that it has over groups.

    Args:
        owners: (N,) the group of each case, as numbers.
    """
    _, groups = np.unique(owners, return_inverse=True)
    sizes = np.bincount(groups)
    centred = values - values.mean()
    variance = float((np.bincount(groups, weights=centred) ** 2).sum()) / len(values) ** 2
    alike = len(values) ** 2 / float((sizes.astype(np.float64) ** 2).sum())  # all cases of a group are the same
    return between(float((centred**2).mean()), variance, alike, len(values))


def between(spread: float, variance: float, fewest: float, most: float) -> float:
    """``spread / variance`` within two bounds; ``fewest`` where nothing varies, so that nothing is known of it."""
    if spread <= 0 or variance <= 0:
        return fewest
    return min(most, max(fewest, spread / variance))


def mean_of_classes(means: Sequence[float], intervals: Sequence[Interval]) -> Interval:
    """Interval of the mean of independent classes' means, from the interval of each."""
    mean, count = math.fsum(means) / len(means), len(means)
    down, up = (
        math.sqrt(math.fsum((m - interval[end]) ** 2 for m, interval in zip(means, intervals, strict=True))) / count
        for end in (0, 1)
    )
    return mean - down, mean + up
