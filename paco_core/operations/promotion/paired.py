"""Is one version better than another? A paired bootstrap over prompts, and over the seeds within each prompt.

Figures that are all 0 or 1 have the interval of paired shares instead (:mod:`paco_core.benchmarks.statistics`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from paco_core.benchmarks.statistics import estimate_difference, is_yes_no
from paco_core.grpo.metrics import FEWEST_GROUPS, LEVEL


@dataclass(frozen=True)
class Paired:
    """Mean of first - second with its 95% interval; a case that either side failed is left out and counted."""

    difference: float
    low: float
    high: float
    prompts: int
    cases: int
    missing: int

    @property
    def is_better(self) -> bool:
        return self.low > 0

    @property
    def is_worse(self) -> bool:
        return self.high < 0

    def metrics(self, name: str) -> dict[str, float]:
        """``name``, ``name_low`` and ``name_high``; where cases are missing, their number as ``name_missing``."""
        metrics = {name: self.difference, f"{name}_low": self.low, f"{name}_high": self.high}
        return {**metrics, f"{name}_missing": float(self.missing)} if self.missing else metrics

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """The difference with its interval, or why there is none, and how many cases are missing."""
        ends = f"{self.low:+.4f} to {self.high:+.4f}"
        if math.isnan(self.low):
            ends = f"no interval: {self.prompts} prompts, at least {FEWEST_GROUPS} are needed"
        missing = f", {self.missing} of {self.cases + self.missing} cases missing" if self.missing else ""
        return f"{self.difference:+.4f} ({ends}{missing})"


def paired(
    first: ArrayLike, second: ArrayLike, prompts: Sequence[str], *, resamples: int = 2000, seed: int = 0
) -> Paired:
    """Compare two versions on the same cases.

    Each resample draws prompts with replacement and, within each drawn prompt, its cases (seeds) with
    replacement: pictures of one prompt stand or fall together, and a prompt's figure is itself uncertain.

    Args:
        first, second: (N,) figures of the same cases in the same order; NaN = failed.
        prompts: (N,) the prompt of each case.

    Returns:
        All NaN without any case; an interval of NaN for fewer than six prompts.

    Raises:
        ValueError: when the lengths differ.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if not a.shape == b.shape == (len(prompts),):
        raise ValueError(f"paired figures and prompts must have one length, got {a.shape}, {b.shape}, {len(prompts)}")
    has_both = ~np.isnan(a - b)
    values, missing = (a - b)[has_both], int((~has_both).sum())
    owners = np.asarray(list(prompts), dtype=object)[has_both]
    nan = float("nan")
    if not len(values):
        return Paired(nan, nan, nan, 0, 0, missing)
    groups = [values[owners == owner] for owner in sorted(set(owners))]
    mean = float(values.mean())
    if len(groups) < FEWEST_GROUPS:
        return Paired(mean, nan, nan, len(groups), len(values), missing)
    if is_yes_no(a[has_both]) and is_yes_no(b[has_both]):
        comparison = estimate_difference(
            a[has_both], b[has_both], groups=[str(o) for o in owners], resamples=resamples, seed=seed
        )
        return Paired(mean, comparison.low, comparison.high, len(groups), len(values), missing)
    rng = np.random.default_rng(seed)
    means = np.empty(resamples)
    for draw in range(resamples):
        chosen = [groups[g] for g in rng.integers(len(groups), size=len(groups))]
        redrawn = np.concatenate([g[rng.integers(len(g), size=len(g))] for g in chosen])
        means[draw] = redrawn.mean()
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Paired(mean, float(low), float(high), len(groups), len(values), missing)
