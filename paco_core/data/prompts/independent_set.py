"""Maximal independent sets of the graph that joins embeddings of at least some similarity.

Greedy in the given order: a row is kept unless it is similar to a kept one. Up to 20,000 rows, and where few are kept,
that is what every set is. Where many are kept of very many, lists of near rows give a first set, and an exact pass
makes it right: it drops what is similar to a kept row after all, and adds what nothing covers then. So every set is
independent and maximal; the lists only decide which of several such sets it is, and speed the search for a threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from paco_core.data.prompts.neighbours import BLOCK, LISTED, Neighbourhood

SMALL = 4096  # rows of which every threshold can be tried by an exact pass
EXACT_KEPT = 4096  # rows kept of very many, up to which the exact pass costs less than the lists
SPARE = 200  # one row in so many is asked for beyond a target, for the exact pass drops some
BISECTIONS = 18  # of a threshold in -1..1: to 1e-5


def independent_set(near: Neighbourhood, threshold: float) -> list[int]:
    """Ascending positions of a maximal independent set: no two kept rows reach ``threshold``, every other row does."""
    kept = _greedy(near.rows, [], range(len(near)), threshold, stop=None if near.exact else EXACT_KEPT)
    return kept if near.exact or len(kept) < EXACT_KEPT else _repaired(near, first_set(near, threshold), threshold)


def at_least(near: Neighbourhood, target: int) -> tuple[list[int], float]:
    """An independent set of at least ``target`` rows at a threshold as low as the search finds, and that threshold."""
    everything = range(len(near))
    if len(near) <= SMALL or 2 * len(near) > LISTED * target:  # else the lists are too short for so low a threshold
        threshold = _bisect(lambda t: len(_greedy(near.rows, [], everything, t, stop=target)), target)
        return _greedy(near.rows, [], everything, threshold), threshold
    wanted = target + target // SPARE
    while True:
        threshold = _bisect(lambda t: len(first_set(near, t)), min(wanted, len(near)))
        kept = independent_set(near, threshold)
        if len(kept) >= target:
            return kept, threshold
        wanted = wanted * target // len(kept) + wanted // SPARE + 1


def first_set(near: Neighbourhood, threshold: float) -> list[int]:
    """The greedy set by the lists alone; it may hold a pair that the lists do not know."""
    taken, kept = np.zeros(len(near), dtype=bool), np.zeros(len(near), dtype=bool)
    for row, degree in enumerate(_degrees(near, threshold).tolist()):
        if taken[row]:
            continue
        listed = near.lists.indices[row, :degree]
        if not kept[listed].any():
            kept[row] = True
            taken[listed] = True
    return [int(row) for row in np.flatnonzero(kept)]


def _degrees(near: Neighbourhood, threshold: float) -> np.ndarray:
    """How many of each row's list reach the threshold; lists are sorted, so that these are the first ones."""
    return (near.lists.similarities >= threshold).sum(axis=1)  # type: ignore[no-any-return]


def _repaired(near: Neighbourhood, first: list[int], threshold: float) -> list[int]:
    """A set made independent and maximal by exact products."""
    kept = _greedy(near.rows, [], first, threshold)
    chosen, degrees = np.zeros(len(near), dtype=bool), _degrees(near, threshold)
    chosen[kept] = True
    covered = chosen.copy()
    for row in kept:
        covered[near.lists.indices[row, : degrees[row]]] = True
    for row in np.flatnonzero(~covered).tolist():
        covered[row] = chosen[near.lists.indices[row, : degrees[row]]].any()
    return sorted(_greedy(near.rows, kept, np.flatnonzero(~covered).tolist(), threshold))


def _bisect(count: Callable[[float], int], target: int) -> float:
    """A low threshold at which ``count`` reaches ``target``; at the upper end everything is kept."""
    low, high = -1.0, 1.001  # above the largest similarity that rounding gives
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if count(middle) >= target:
            high = middle
        else:
            low = middle
    return high


def _greedy(
    rows: np.ndarray, kept: list[int], candidates: Iterable[int], threshold: float, stop: int | None = None
) -> list[int]:
    """``kept`` and the candidates that are similar to no earlier kept one; ends once ``stop`` rows are kept."""
    kept, order = list(kept), np.fromiter(candidates, dtype=np.int64)
    for start in range(0, len(order), BLOCK):
        positions = order[start : start + BLOCK]
        for first in range(0, len(kept), BLOCK):
            alike = rows[positions] @ rows[kept[first : first + BLOCK]].T >= threshold
            positions = positions[~alike.any(axis=1)]
        within = rows[positions] @ rows[positions].T >= threshold
        gone = np.zeros(len(positions), dtype=bool)
        for number, position in enumerate(positions.tolist()):
            if not gone[number]:
                kept.append(position)
                gone |= within[number]
                if len(kept) == stop:
                    return kept
    return kept
