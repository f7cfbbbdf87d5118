"""A diverse subset of the prompts: an independent set of the graph that joins similar themes.

Two prompts are neighbours when the cosine similarity of their themes reaches a threshold. A greedy
pass in the given order keeps a prompt unless it neighbours a kept one: a maximal independent set, the
same on every run. All products are taken in blocks, so memory grows with the block, not with N x N.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paco_core.dataset.records import PromptRecord
from paco_core.files import DataError

if TYPE_CHECKING:
    import numpy as np

BLOCK = 1024
BISECTIONS = 24  # of a threshold in -1..1: finer than float32 tells similarities apart


@dataclass(frozen=True)
class Diversified:
    """What was kept, under which threshold, and each prompt's similarity to its nearest other prompt."""

    kept: list[int]  # positions, ascending
    threshold: float
    nearest_before: np.ndarray  # (prompts,) among all
    nearest_after: np.ndarray  # (prompts,) among the kept; NaN for the others
    restored: int  # kept although similar, lest their subcategory be emptied


def diversify(
    embeddings: np.ndarray,
    records: Sequence[PromptRecord],
    *,
    target: int | None = None,
    threshold: float | None = None,
) -> Diversified:
    """Keep prompts of which no two are similar, by threshold or to a target count.

    With a target, the lowest threshold that keeps at least as many is searched and the surplus goes, from
    the largest subcategories first and there the prompt that is most like another kept one. Every
    subcategory keeps at least one prompt.

    Args:
        embeddings: (prompts, width), rows of unit length, in the order of ``records``.

    Raises:
        DataError: when sizes disagree, both or neither rule is given, or the target is out of reach.
    """
    import numpy as np

    if len(embeddings) != len(records):
        raise DataError(f"{len(embeddings)} embeddings for {len(records)} prompts")
    if (target is None) == (threshold is None):
        raise DataError("give either a target count or a threshold")
    groups = [(record.category, record.task_name) for record in records]
    if target is not None:
        if not len(set(groups)) <= target <= len(records):
            raise DataError(
                f"diverse_prompts.target={target}: choose between {len(set(groups))} (one a subcategory) "
                f"and {len(records)} (all prompts)"
            )
        threshold = _search(embeddings, target)
    assert threshold is not None
    kept = independent_set(embeddings, threshold)
    whole = _restore(kept, groups)
    restored = len(whole) - len(kept)
    if target is not None:
        whole = _trim(embeddings, whole, groups, target)
    after = np.full(len(records), np.nan)
    after[whole] = nearest(embeddings[whole])
    return Diversified(whole, float(threshold), nearest(embeddings), after, restored)


def independent_set(embeddings: np.ndarray, threshold: float) -> list[int]:
    """Positions kept by the greedy pass: each similar to no earlier kept one by ``threshold`` or more."""
    import numpy as np

    kept: list[int] = []
    for start in range(0, len(embeddings), BLOCK):
        block = embeddings[start : start + BLOCK]
        taken = np.zeros(len(block), dtype=bool)
        for first in range(0, len(kept), BLOCK):
            taken |= (block @ embeddings[kept[first : first + BLOCK]].T >= threshold).any(axis=1)
        within = block @ block.T >= threshold
        for row in range(len(block)):
            if not taken[row]:
                kept.append(start + row)
                taken |= within[row]
    return kept


def nearest(embeddings: np.ndarray) -> np.ndarray:
    """Each row's greatest similarity to another row; NaN where there is no other."""
    import numpy as np

    best = np.full(len(embeddings), -np.inf)
    for start in range(0, len(embeddings), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(embeddings)))
        for first in range(0, len(embeddings), BLOCK):
            similar = embeddings[rows] @ embeddings[first : first + BLOCK].T
            own = rows - first
            inside = (own >= 0) & (own < similar.shape[1])
            similar[np.flatnonzero(inside), own[inside]] = -np.inf
            best[rows] = np.maximum(best[rows], similar.max(axis=1))
    return np.where(np.isneginf(best), np.nan, best)


def _search(embeddings: np.ndarray, target: int) -> float:
    """A low threshold that keeps at least ``target``; at the upper end everything is kept."""
    low, high = -1.0, 1.001  # above the largest similarity that rounding gives
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if len(independent_set(embeddings, middle)) >= target:
            high = middle
        else:
            low = middle
    return high


def _restore(kept: list[int], groups: Sequence[tuple[str, str]]) -> list[int]:
    """Add the first prompt of every subcategory that the independent set has emptied."""
    present = {groups[position] for position in kept}
    missing = {group: position for position, group in reversed(list(enumerate(groups))) if group not in present}
    return sorted([*kept, *missing.values()])


def _trim(embeddings: np.ndarray, kept: list[int], groups: Sequence[tuple[str, str]], target: int) -> list[int]:
    similar = dict(zip(kept, nearest(embeddings[kept]), strict=True))
    members: dict[tuple[str, str], list[int]] = defaultdict(list)
    for position in kept:
        members[groups[position]].append(position)
    for _ in range(len(kept) - target):
        group = max(members, key=lambda name: (len(members[name]), name))
        members[group].remove(max(members[group], key=lambda position: (similar[position], position)))
    return sorted(position for rows in members.values() for position in rows)
