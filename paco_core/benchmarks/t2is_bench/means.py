"""Means of means of answers, as T2IS-Bench takes them, and ViStoryBench."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from paco_core.reward_model.yes_probability import Query, QueryScorer

Place = tuple[int, int, int]  # row, column, part (a criterion or a panel)


def answers(
    scorer: QueryScorer, asked: Sequence[tuple[Place, Query]], rows: int, columns: Sequence[str], causes: Counter[str]
) -> dict[str, np.ndarray]:
    """Column -> (rows,) means of the scores of the queries that have a place in it (:func:`mean_of_means`).

    Args:
        causes: why queries failed is counted in it.
    """
    scores = scorer.score([query for _, query in asked])
    causes.update(score.cause for score in scores if score.cause is not None)
    found = mean_of_means([place for place, _ in asked], [score.value for score in scores], (rows, len(columns)))
    return dict(zip(columns, found.T, strict=True))


def mean_of_means(places: Sequence[Place], values: Sequence[float], shape: tuple[int, int]) -> np.ndarray:
    """Mean of each cell (row, column) over its parts (criteria or panels), of each part over its values.

    Args:
        places: (row, column, part) of each value.
        shape: rows and columns.

    Returns:
        (rows, columns) float64; NaN in a cell without values, or with a NaN among them.
    """
    by_part: dict[Place, list[float]] = {}
    for place, value in zip(places, values, strict=True):
        by_part.setdefault(place, []).append(value)
    by_cell: dict[tuple[int, int], list[float]] = {}
    for (row, column, _), found in by_part.items():
        by_cell.setdefault((row, column), []).append(float(np.mean(found)))
    means = np.full(shape, np.nan)
    for cell, found in by_cell.items():
        means[cell] = np.mean(found)
    return means
