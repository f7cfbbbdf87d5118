"""Items of ``foreach`` may follow each other from the last entry of ``dvc.yaml`` back to the first."""

from __future__ import annotations

from collections.abc import Mapping, Set


def without_circles(
    upstream: Mapping[str, tuple[str, ...]], item_readers: Mapping[str, Set[str]]
) -> dict[str, tuple[str, ...]]:
    """The entries that each entry reads, without the edges that close a circle.

    ``paint@2`` reads ``train@1``, and ``train@2`` reads ``paint@2``: no circle of stages, but one of entries. The edge
    that is left out is the one that lies between different items alone, and so are edges of an entry to itself.

    Args:
        upstream: entry -> the entries that it reads.
        item_readers: entry -> those of which an item reads the item of its own name.
    """
    return {
        name: tuple(up for up in read if up != name and (up in item_readers[name] or name not in _above(up, upstream)))
        for name, read in upstream.items()
    }


def _above(name: str, upstream: Mapping[str, tuple[str, ...]]) -> set[str]:
    """All entries that an entry reads, also through others."""
    ancestors: set[str] = set()
    todo = [name]
    while todo:
        fresh = set(upstream[todo.pop()]) - ancestors
        ancestors |= fresh
        todo += fresh
    return ancestors
