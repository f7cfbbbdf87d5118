"""Which embeddings lie near which: exactly in blocks, or with an inverted-file index when there are many.

Blocks: memory grows with the block, not with N x N. The index is faiss's IVF, whose similarities are exact and whose
lists may miss a neighbour; its k-means is seeded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

EXACT_UP_TO = 20_000  # rows: all their products take seconds; those of 200,000 a hundred times as long
BLOCK = 1024
LISTED = 128  # neighbours in a row's list
PROBED = 8  # cells of the index searched for a row
TRAINED_ON = 64  # rows a cell for k-means: more changes little


@dataclass(frozen=True)
class Lists:
    """Near rows of every row, nearest first, without the row itself; a short list is filled with -1 and -2."""

    indices: np.ndarray  # (rows, LISTED) int32
    similarities: np.ndarray  # (rows, LISTED) float32


class Neighbourhood:
    """Rows of unit length, and what is known of their neighbours; nothing is computed before it is asked for.

    Args:
        rows: (rows, width) float32 of unit length.
    """

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def exact(self) -> bool:
        """Whether there are few enough rows to take all products."""
        return len(self.rows) <= EXACT_UP_TO

    @cached_property
    def lists(self) -> Lists:
        return _indexed(self.rows)

    @cached_property
    def nearest(self) -> np.ndarray:
        """(rows,) each row's greatest similarity to another; NaN where there is no other.

        Where not :attr:`exact`, a value is too small when the index missed the nearest row.
        """
        if self.exact:
            return _nearest(self.rows)
        found = self.lists.similarities[:, 0]
        return np.where(found > -2, found, np.nan)


def _nearest(rows: np.ndarray) -> np.ndarray:
    best = np.full(len(rows), -np.inf)
    for start in range(0, len(rows), BLOCK):
        here = slice(start, start + BLOCK)
        for first in range(start, len(rows), BLOCK):
            there = slice(first, first + BLOCK)
            similar = rows[here] @ rows[there].T
            if first == start:
                np.fill_diagonal(similar, -np.inf)
            best[here] = np.maximum(best[here], similar.max(axis=1))
            best[there] = np.maximum(best[there], similar.max(axis=0))
    return np.where(np.isneginf(best), np.nan, best)


def _indexed(rows: np.ndarray) -> Lists:
    import faiss

    count, width = rows.shape
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, max(1, math.isqrt(count)), faiss.METRIC_INNER_PRODUCT)
    index.cp.max_points_per_centroid = TRAINED_ON
    index.cp.min_points_per_centroid = 1
    index.train(rows)
    index.add(rows)
    index.nprobe = PROBED
    indices = np.full((count, LISTED), -1, dtype=np.int32)
    similarities = np.full((count, LISTED), -2, dtype=np.float32)
    for start in range(0, count, 16 * BLOCK):
        near, found = index.search(rows[start : start + 16 * BLOCK], LISTED + 1)
        found = found.astype(np.int32)
        own = found == np.arange(start, start + len(found), dtype=np.int32)[:, None]
        own[~own.any(axis=1), -1] = True  # lost among equal rows: drop the last one instead
        indices[start : start + len(found)] = found[~own].reshape(len(found), LISTED)
        similarities[start : start + len(found)] = near[~own].reshape(len(found), LISTED)
    similarities[indices < 0] = -2
    return Lists(indices, similarities)
