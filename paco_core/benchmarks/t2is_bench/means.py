"""Means of means, as T2IS-Bench takes them, and ViStoryBench."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def mean_of_means(
    places: Sequence[tuple[int, int, int]], values: Sequence[float], shape: tuple[int, int]
) -> np.ndarray:
    """Mean of each cell (row, column) over its parts (criteria or panels), of each part over its values.

    Args:
        places: (row, column, part) of each value.
        shape: rows and columns.

    Returns:
        (rows, columns) float64; NaN in a cell without values, or with a NaN among them.
    """
    by_part: dict[tuple[int, int, int], list[float]] = {}
    for place, value in zip(places, values, strict=True):
        by_part.setdefault(place, []).append(value)
    by_cell: dict[tuple[int, int], list[float]] = {}
    for (row, column, _), found in by_part.items():
        by_cell.setdefault((row, column), []).append(float(np.mean(found)))
    means = np.full(shape, np.nan)
    for cell, found in by_cell.items():
        means[cell] = np.mean(found)
    return means
