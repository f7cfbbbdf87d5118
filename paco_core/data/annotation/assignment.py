"""Who sees which instance, in which order, with the candidates in which places.

All of it follows from names, ids and tokens alone, so that a restart changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from paco_core.data.seeds import random_key
from paco_core.io.files import DataError


def sample(instance_ids: Iterable[str], count: int | None) -> list[str]:
    """A random part of the instances (all without a count): a larger count keeps those of a smaller one."""
    return sorted(instance_ids, key=lambda instance: random_key("sample", instance))[:count]


def queue(token: str, instance_ids: Iterable[str]) -> list[str]:
    """An annotator's own random order of instances."""
    return sorted(instance_ids, key=lambda instance: random_key(token, instance))


def places(token: str, instance_id: str, candidates: int) -> tuple[int, ...]:
    """Which candidate stands in each place of an annotator's page: random, and the same at every visit."""
    return tuple(sorted(range(candidates), key=lambda candidate: random_key(token, instance_id, candidate)))


def assign(
    instance_ids: Sequence[str],
    annotators: Sequence[str],
    overlap: int,
    answered: Mapping[str, Iterable[str]] | None = None,
) -> dict[str, set[str]]:
    """Give every instance to ``overlap`` annotators, with equal work and every two sharing equally much.

    Args:
        annotators: names of those who are to work.
        answered: instance -> who has answered it already. Their answers count towards the overlap, whoever
            they are, so that a change of annotators or overlap plans only what is still to do.

    Returns:
        The instances of each annotator.

    Raises:
        DataError: when there are fewer annotators than the overlap.
    """
    if not 1 <= overlap <= len(annotators):
        raise DataError(f"overlap {overlap}: each instance needs that many annotators, there are {len(annotators)}")
    load = dict.fromkeys(annotators, 0)
    shared = dict.fromkeys(combinations(sorted(annotators), 2), 0)
    plan: dict[str, set[str]] = {name: set() for name in annotators}
    for instance in sorted(instance_ids, key=lambda instance: random_key("assign", instance)):
        chosen: list[str] = []
        for _ in range(overlap):
            chosen.append(
                min(
                    (name for name in annotators if name not in chosen),
                    key=lambda name: (load[name], sum(shared[unordered(name, other)] for other in chosen), name),
                )
            )
            load[chosen[-1]] += 1
        for pair in combinations(sorted(chosen), 2):
            shared[pair] += 1
        done = set((answered or {}).get(instance, ()))
        for name in [*done, *(name for name in chosen if name not in done)][: max(overlap, len(done))]:
            if name in plan:
                plan[name].add(instance)
    return plan


def unordered(first: str, second: str) -> tuple[str, str]:
    """Two names, the smaller one first."""
    return (first, second) if first < second else (second, first)
