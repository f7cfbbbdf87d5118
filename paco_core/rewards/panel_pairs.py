"""Panel pairs: the panels of a set that a reward model compares."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Literal

Pairs = Literal["all", "neighbours"] | int


def select_panel_pairs(panels: int, columns: int, pairs: Pairs, key: str = "") -> list[tuple[int, int]]:
    """Pairs of panels by their indices in reading order, the earlier one first.

    n panels have n (n - 1) / 2 pairs. For example, four panels have 6 pairs and eight panels have 28.

    Args:
        panels: number of panels.
        columns: number of panels in a row.
        pairs: ``all``; ``neighbours`` = pairs that share an edge; a number = at most so many pairs, sampled by ``key``.
    """
    every = list(combinations(range(panels), 2))
    if pairs == "all":
        return every
    if pairs == "neighbours":
        return [(a, b) for a, b in every if b == a + columns or (b == a + 1 and b % columns)]
    return sorted(random.Random(f"pairs|{key}").sample(every, min(pairs, len(every))))
