"""Batch shapes for which a score does not depend on the other queries of its batch.

CPU libraries choose algorithms by shape: products of few rows (up to 3, or up to 15 with AMX), the remainder of a row
that does not fill a vector register, and attention over longer sequences round differently in the last bits. In passes
on one thread, with rows padded to whole steps by their length only, each row is computed identically for any number and
order of rows.

This is a property of the libraries on a machine, not a guarantee. Therefore the scorer tests it
(:func:`.scorer.batches_keep_bits`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

STEP = 8  # tokens of a question: with a layer's width whole vector registers
READ_STEP = 16  # places read in a pass: too many for kernels of few rows
PATCH_STEP = 4 * READ_STEP  # patches of a pass, four to a token
T = TypeVar("T")


class SequenceShape(Protocol):
    """A sequence for the language model."""

    @property
    def length(self) -> int: ...


def round_up(count: int, step: int = STEP) -> int:
    """``count`` rounded up to whole steps."""
    return -(-count // step) * step


def chunks(items: Sequence[T], size: int) -> list[list[T]]:
    """Items in runs of ``size``; the last may be shorter."""
    return [list(items[start : start + size]) for start in range(0, len(items), size)]


def by_length(rows: Sequence[SequenceShape], limit: int) -> list[list[int]]:
    """Row numbers in batches of at most ``limit`` rows of similar length."""
    return chunks(sorted(range(len(rows)), key=lambda number: rows[number].length), limit)


def of_one_length(rows: Sequence[SequenceShape]) -> dict[int, list[int]]:
    """Row numbers by padded length, the shortest first."""
    groups: dict[int, list[int]] = {}
    for number in sorted(range(len(rows)), key=lambda number: rows[number].length):
        groups.setdefault(round_up(rows[number].length), []).append(number)
    return groups
