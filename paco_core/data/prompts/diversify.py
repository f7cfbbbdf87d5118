"""Diversification: a maximal independent set of the graph that joins similar prompts.

Two prompts are neighbours when the cosine similarity of their embeddings reaches a threshold. The set is greedy in the
given order, and equal on every run. Products are taken in blocks, so memory does not grow with the square of the
number of prompts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paco_core.data.records.records import PromptRecord
from paco_core.io.files import DataError

BLOCK = 1024  # rows
BISECTIONS = 18  # of a threshold in -1..1: to 1e-5


@dataclass(frozen=True)
class Diversified:
    """The selected prompts, the threshold, and the similarity of each prompt to its nearest other prompt."""

    selected: list[int]  # positions, ascending
    threshold: float
    nearest_before: np.ndarray  # (prompts,) among all
    nearest_after: np.ndarray  # (prompts,) among the kept; NaN for the others
    restored: int  # kept although similar, lest their subcategory be emptied


def validate_target(records: Sequence[PromptRecord], target: int) -> None:
    """Raise DataError unless the target is between the numbers of subcategories and of prompts."""
    groups = {(record.category, record.task_name) for record in records}
    if not len(groups) <= target <= len(records):
        raise DataError(
            f"diverse_prompts.target={target}: choose between {len(groups)} (one per subcategory) "
            f"and {len(records)} (all prompts)"
        )


def diversify(
    embeddings: np.ndarray,
    records: Sequence[PromptRecord],
    *,
    target: int | None = None,
    threshold: float | None = None,
) -> Diversified:
    """Select prompts of which no two are similar, by a threshold or to a target count.

    With a target, a bisection searches for the lowest threshold that selects at least ``target`` prompts. The surplus
    is then dropped: from the largest subcategories first, and there the prompt that is most similar to another selected
    one. Every subcategory keeps at least one prompt.

    Args:
        embeddings: (prompts, width), rows of unit length, in the order of ``records``.
        target: number of prompts to select.
        threshold: cosine similarity from which two prompts count as similar.

    Raises:
        DataError: if the sizes differ, both or neither of ``target`` and ``threshold`` are set, or the target is out of
            range.
    """
    if len(embeddings) != len(records):
        raise DataError(f"{len(embeddings)} embeddings for {len(records)} prompts")
    if (target is None) == (threshold is None):
        raise DataError("give either a target count or a threshold")
    groups = [(record.category, record.task_name) for record in records]
    if target is not None:
        validate_target(records, target)
        selected, threshold = at_least(embeddings, target)
    else:
        assert threshold is not None
        selected = independent_set(embeddings, threshold)
    restored_set = _restore(selected, groups)
    restored = len(restored_set) - len(selected)
    if target is not None:
        restored_set = _trim(embeddings, restored_set, groups, target)
    after = np.full(len(records), np.nan)
    after[restored_set] = nearest_similarity(embeddings[restored_set])
    return Diversified(restored_set, float(threshold), nearest_similarity(embeddings), after, restored)


def _restore(selected: list[int], groups: Sequence[tuple[str, str]]) -> list[int]:
    """Add the first prompt of every subcategory that the independent set has emptied."""
    present = {groups[position] for position in selected}
    missing = {group: position for position, group in reversed(list(enumerate(groups))) if group not in present}
    return sorted([*selected, *missing.values()])


def _trim(embeddings: np.ndarray, selected: list[int], groups: Sequence[tuple[str, str]], target: int) -> list[int]:
    if len(selected) <= target:
        return selected
    similar = dict(zip(selected, nearest_similarity(embeddings[selected]), strict=True))
    members: dict[tuple[str, str], list[int]] = defaultdict(list)
    for position in selected:
        members[groups[position]].append(position)
    for _ in range(len(selected) - target):
        group = max(members, key=lambda name: (len(members[name]), name))
        members[group].remove(max(members[group], key=lambda position: (similar[position], position)))
    return sorted(position for rows in members.values() for position in rows)


def nearest_similarity(rows: np.ndarray) -> np.ndarray:
    """(rows,) the greatest similarity of each row to another row; NaN if there is no other row.

    Args:
        rows: (rows, width) float32 of unit length.
    """
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


def independent_set(rows: np.ndarray, threshold: float, stop: int | None = None) -> list[int]:
    """Ascending positions of a maximal independent set: no two kept rows reach ``threshold``, every other row does.

    Args:
        rows: (rows, width) float32 of unit length.
        stop: end once so many rows are kept; the set is then not maximal.
    """
    selected = list[int]()
    for start in range(0, len(rows), BLOCK):
        positions = np.arange(start, min(start + BLOCK, len(rows)))
        for first in range(0, len(selected), BLOCK):
            similar = rows[positions] @ rows[selected[first : first + BLOCK]].T >= threshold
            positions = positions[~similar.any(axis=1)]
        within = rows[positions] @ rows[positions].T >= threshold
        covered = np.zeros(len(positions), dtype=bool)
        for number, position in enumerate(positions.tolist()):
            if not covered[number]:
                selected.append(position)
                covered |= within[number]
                if len(selected) == stop:
                    return selected
    return selected


def at_least(rows: np.ndarray, target: int) -> tuple[list[int], float]:
    """An independent set of at least ``target`` rows at a threshold as low as a bisection finds, and that threshold.

    Args:
        rows: embeddings (rows, width) of length 1.
    """
    low, high = -1.0, 1.001  # above the largest similarity that rounding gives: everything is kept
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if len(independent_set(rows, middle, stop=target)) >= target:
            high = middle
        else:
            low = middle
    return independent_set(rows, high), high
