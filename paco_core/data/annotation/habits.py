"""How a person works, as far as a blind page can tell: pace, and the same keys over and over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import factorial, nan
from statistics import median

#: Chance that a careful annotator is called a creature of habit, over all orders that could be the habit.
RARE = 1e-3


@dataclass(frozen=True)
class Habits:
    """One person's answers, as they came from the page.

    ``pattern`` is the order of places on the page (from 0) that was chosen most often, and ``pattern_count``
    how often: candidates stand in random places, so that each order is equally likely by merit.
    """

    answers: int
    cannot_tell: int
    median_seconds: float
    pattern: tuple[int, ...]
    pattern_count: int

    @property
    def pattern_share(self) -> float:
        """Share of answers that follow the most frequent pattern."""
        return self.pattern_count / self.answers if self.answers else nan

    @property
    def mechanical(self) -> bool:
        """Whether the most frequent pattern is far too frequent for answers by merit (binomial test, Bonferroni)."""
        if not self.pattern:
            return False
        from scipy.stats import binom  # half a second that a page which shows no habits need not spend

        patterns = factorial(len(self.pattern))
        return float(binom.sf(self.pattern_count - 1, self.answers, 1 / patterns)) * patterns < RARE


def habits(patterns: Sequence[tuple[int, ...]], seconds: Sequence[float], cannot_tell: int) -> Habits:
    """Habits from the chosen orders of places, and the seconds each answer took."""
    pattern, count = Counter(patterns).most_common(1)[0] if patterns else ((), 0)
    return Habits(len(patterns), cannot_tell, median(seconds) if seconds else nan, pattern, count)
