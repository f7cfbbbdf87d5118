"""How far apart two runs of one reward model may lie: the log-odds of Yes, with bounds by number format.

Half precision needs them wide. In bfloat16 a logit between 16 and 32 moves in steps of 0.125, a merge rounds each
weight, and engines add up in their own order. In a random Qwen2 tower of 24 layers (logits to 32, a LoRA of rank 32 at
2% of each weight's norm, 48 questions) merging the adapter moved the log-odds by 0.86 at most and 0.22 on average, in
one of 14 wider layers by 0.99 and 0.32; leaving it out by 3.3 to 3.6 at most and 0.85 to 1.4 on average. vLLM and
transformers differ by up to 0.32 in a log-probability (vllm-project/vllm#18352), so by up to 0.64 in log-odds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Scores nearer to 0 or 1 count as this: servers list the likeliest tokens alone, and no decision hangs on the rest.
CERTAIN = 1e-4


@dataclass(frozen=True)
class Bounds:
    """What two runs may differ by in the margin of one pair, and on average over pairs."""

    worst: float
    mean: float


#: Of the written folder against base + adapter, by one engine in one format.
MERGED = {"float32": Bounds(2e-4, 1e-4), "bfloat16": Bounds(1.5, 0.5)}
#: Of a server, which may be another engine, against the scores that the folder was written with.
SERVED = {"float32": Bounds(0.1, 0.05), "bfloat16": Bounds(1.5, 0.5)}


def served(*dtypes: str) -> Bounds:
    """The bounds of a server, where the folder was written and is served in these formats (``auto``: any)."""
    return SERVED["float32" if set(dtypes) == {"float32"} else "bfloat16"]


def margin(score: float) -> float:
    """Log-odds of Yes of a score in [0, 1]; NaN stays NaN."""
    clipped = float(np.clip(score, CERTAIN, 1 - CERTAIN))
    return math.log(clipped) - math.log1p(-clipped)


@dataclass(frozen=True)
class MarginAgreement:
    """How far two runs' margins of the same pairs lie apart."""

    differences: tuple[float, ...]
    bounds: Bounds

    @property
    def worst(self) -> float:
        return float(np.max(self.differences))  # NaN where a pair has no score

    @property
    def mean(self) -> float:
        return float(np.mean(self.differences))

    @property
    def holds(self) -> bool:
        """Within both bounds; False where a pair has no score."""
        return self.worst <= self.bounds.worst and self.mean <= self.bounds.mean

    def __str__(self) -> str:
        return (
            f"log-odds of Yes {self.worst:.2g} apart at most (allowed {self.bounds.worst:g}), "
            f"{self.mean:.2g} on average (allowed {self.bounds.mean:g})"
        )


def compare(expected: Sequence[float], found: Sequence[float], bounds: Bounds) -> MarginAgreement:
    """Compare two runs' scores of the same pairs, in order."""
    pairs = zip(expected, found, strict=True)
    return MarginAgreement(tuple(abs(margin(after) - margin(before)) for before, after in pairs), bounds)
