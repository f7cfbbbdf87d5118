"""Which panels of a set a judge is asked to compare."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Literal

Pairs = Literal["all", "neighbours"] | int


def panel_pairs(panels: int, columns: int, pairs: Pairs, key: str = "") -> list[tuple[int, int]]:
    """Pairs of panels by their places in reading order, the earlier one first.

    Of n panels there are n (n - 1) / 2 pairs: 6 of four, 28 of eight.

    Args:
        panels, columns: how many there are, and how many of them stand side by side.
        pairs: ``all``; ``neighbours`` = those that share an edge; a number = so many, drawn by ``key``, or all where
            there are no more.
    """
    every = list(combinations(range(panels), 2))
    if pairs == "all":
        return every
    if pairs == "neighbours":
        return [(a, b) for a, b in every if b == a + columns or (b == a + 1 and b % columns)]
    return sorted(random.Random(f"pairs|{key}").sample(every, min(pairs, len(every))))
