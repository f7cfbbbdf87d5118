"""A diverse subset of the prompts: a maximal independent set of the graph that joins similar prompts.

Two prompts are neighbours when the cosine similarity of their embeddings reaches a threshold. The set is the same on
every run; then no subcategory is left empty, and with a target count the surplus goes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paco_core.data.prompts.independent_set import at_least, independent_set
from paco_core.data.prompts.neighbours import Neighbourhood
from paco_core.data.records.records import PromptRecord
from paco_core.io.files import DataError


@dataclass(frozen=True)
class Diversified:
    """What was kept, under which threshold, and each prompt's similarity to its nearest other prompt."""

    kept: list[int]  # positions, ascending
    threshold: float
    nearest_before: np.ndarray  # (prompts,) among all
    nearest_after: np.ndarray  # (prompts,) among the kept; NaN for the others
    restored: int  # kept although similar, lest their subcategory be emptied
    exact: bool  # whether all pairs were looked at; else the nearest is the nearest that an index found


def refuse_target(records: Sequence[PromptRecord], target: int) -> None:
    """Raise DataError for a target out of reach: each subcategory keeps a prompt, and there are no more than all."""
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
    """Keep prompts of which no two are similar, by threshold or to a target count.

    With a target, the lowest threshold that keeps at least as many is searched and the surplus goes, from
    the largest subcategories first and there the prompt that is most like another kept one. Every
    subcategory keeps at least one prompt.

    Args:
        embeddings: (prompts, width), rows of unit length, in the order of ``records``.

    Raises:
        DataError: when sizes disagree, both or neither rule is given, or the target is out of reach.
    """
    if len(embeddings) != len(records):
        raise DataError(f"{len(embeddings)} embeddings for {len(records)} prompts")
    if (target is None) == (threshold is None):
        raise DataError("give either a target count or a threshold")
    near = Neighbourhood(embeddings)
    groups = [(record.category, record.task_name) for record in records]
    if target is not None:
        refuse_target(records, target)
        kept, threshold = at_least(near, target)
    else:
        assert threshold is not None
        kept = independent_set(near, threshold)
    whole = _restore(kept, groups)
    restored = len(whole) - len(kept)
    if target is not None:
        whole = _trim(embeddings, whole, groups, target)
    after = np.full(len(records), np.nan)
    after[whole] = Neighbourhood(embeddings[whole]).nearest
    return Diversified(whole, float(threshold), near.nearest, after, restored, near.exact)


def _restore(kept: list[int], groups: Sequence[tuple[str, str]]) -> list[int]:
    """Add the first prompt of every subcategory that the independent set has emptied."""
    present = {groups[position] for position in kept}
    missing = {group: position for position, group in reversed(list(enumerate(groups))) if group not in present}
    return sorted([*kept, *missing.values()])


def _trim(embeddings: np.ndarray, kept: list[int], groups: Sequence[tuple[str, str]], target: int) -> list[int]:
    if len(kept) <= target:
        return kept
    similar = dict(zip(kept, Neighbourhood(embeddings[kept]).nearest, strict=True))
    members: dict[tuple[str, str], list[int]] = defaultdict(list)
    for position in kept:
        members[groups[position]].append(position)
    for _ in range(len(kept) - target):
        group = max(members, key=lambda name: (len(members[name]), name))
        members[group].remove(max(members[group], key=lambda position: (similar[position], position)))
    return sorted(position for rows in members.values() for position in rows)
