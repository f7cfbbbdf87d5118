"""Assignment of instances to annotators, the order of instances, and the order of candidates on the page.

All three depend only on names, ids and tokens, so a restart changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from paco_core.data.seeds import random_key
from paco_core.io.files import DataError


def sample(instance_ids: Iterable[str], count: int | None) -> list[str]:
    """A random sample of the instances (all without a count). A larger sample contains each smaller one."""
    return sorted(instance_ids, key=lambda instance: random_key("sample", instance))[:count]


def queue(token: str, instance_ids: Iterable[str]) -> list[str]:
    """The random order in which an annotator sees the instances."""
    return sorted(instance_ids, key=lambda instance: random_key(token, instance))


def candidate_order(token: str, instance_id: str, candidates: int) -> tuple[int, ...]:
    """The candidate in each place of an annotator's page: random, but equal at every visit."""
    return tuple(sorted(range(candidates), key=lambda candidate: random_key(token, instance_id, candidate)))


def assign(
    instance_ids: Sequence[str],
    annotators: Sequence[str],
    overlap: int,
    answered: Mapping[str, Iterable[str]] | None = None,
) -> dict[str, set[str]]:
    """Assign every instance to ``overlap`` annotators. All have equal work, and every two share equally many instances.

    Args:
        annotators: names of the active annotators.
        answered: instance -> names of the annotators who have already answered it. These answers count towards the
            overlap, so a change of annotators or overlap affects only the remaining work.

    Returns:
        The instances of each annotator.

    Raises:
        DataError: if there are fewer annotators than the overlap.
    """
    if not 1 <= overlap <= len(annotators):
        raise DataError(
            f"overlap {overlap}: each instance needs {overlap} annotators, but {len(annotators)} are active; "
            f"expected 1 to {len(annotators)}"
        )
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
        already_answered = set((answered or {}).get(instance, ()))
        for name in [*already_answered, *(name for name in chosen if name not in already_answered)][
            : max(overlap, len(already_answered))
        ]:
            if name in plan:
                plan[name].add(instance)
    return plan


def unordered(first: str, second: str) -> tuple[str, str]:
    """Two names, the smaller one first."""
    return (first, second) if first < second else (second, first)
