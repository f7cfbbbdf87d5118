"""Shapes in which a question's score does not depend on the questions that are computed beside it.

A processor's libraries choose how to compute by the shape of what they are given: a product of few rows (up to 3 on
some processors, up to 15 on those with AMX), the rest of a row that does not fill a vector register, and attention over
a longer sequence round otherwise in the last bits. In passes on one thread, over whole steps, where each question is
padded by its own length alone, a row is computed in the same way however many others there are and wherever it stands
among them.

That is a property of the libraries on a machine, and no promise of theirs: the scorer tries it out
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


def whole(count: int, step: int = STEP) -> int:
    """``count`` rounded up to whole steps."""
    return -(-count // step) * step


def chunks(items: Sequence[T], size: int) -> list[list[T]]:
    """Items in runs of ``size``; the last may be shorter."""
    return [list(items[start : start + size]) for start in range(0, len(items), size)]


def by_length(rows: Sequence[SequenceShape], limit: int) -> list[list[int]]:
    """Row numbers in batches of at most ``limit`` rows of similar length."""
    return chunks(sorted(range(len(rows)), key=lambda number: rows[number].length), limit)


def of_one_length(rows: Sequence[SequenceShape]) -> dict[int, list[int]]:
    """Row numbers by the length that their rows are padded to, the shortest first."""
    groups: dict[int, list[int]] = {}
    for number in sorted(range(len(rows)), key=lambda number: rows[number].length):
        groups.setdefault(whole(rows[number].length), []).append(number)
    return groups
