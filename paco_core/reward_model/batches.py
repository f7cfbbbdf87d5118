"""The order of training: a pure function of seed and epoch, so a resumed run goes on as it would have."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

POOL = 8  # batches that are sorted by length together: little padding, still shuffled


def epoch_batches(lengths: Sequence[int], size: int, seed: int, epoch: int) -> list[list[int]]:
    """Every example once, in random order, in batches of ``size`` (one may be smaller) of similar length."""
    rng = random.Random(seed * 1_000_003 + epoch)
    order = list(range(len(lengths)))
    rng.shuffle(order)
    pooled: list[int] = []
    for start in range(0, len(order), POOL * size):
        pooled += sorted(order[start : start + POOL * size], key=lambda number: lengths[number])
    batches = [pooled[start : start + size] for start in range(0, len(pooled), size)]
    rng.shuffle(batches)
    return batches


def learning_rate_at(step: int, total: int, peak: float, warmup_share: float) -> float:
    """Linear warm-up over the share of steps, then a cosine to zero; ``step`` counts from 0."""
    warmup = round(total * warmup_share)
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))
