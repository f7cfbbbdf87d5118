"""Which prompts an epoch trains on, as a pure function of the epoch, so that resuming needs no state."""

from __future__ import annotations

import random

from paco_core.files import DataError


def prompts_of_epoch(available: int, count: int, epoch: int, seed: int) -> list[int]:
    """Indices of ``count`` distinct prompts for epoch 0, 1, ...

    Epochs deal out one shuffled deck after another, so that every prompt is met equally often.

    Raises:
        DataError: when fewer prompts are there than one epoch needs.
    """
    if available < count:
        raise DataError(
            f"prompts_per_epoch={count}, but only {available} training prompts are there; "
            f"choose at most {available} or make more prompts"
        )
    deals = available // count
    deck = list(range(available))
    random.Random(f"{seed}|{epoch // deals}").shuffle(deck)
    start = (epoch % deals) * count
    return deck[start : start + count]


def share(groups: int, rank: int, world: int) -> range:
    """The groups of one process; a group is never torn apart, for its statistics belong together.

    Raises:
        DataError: when the groups cannot be dealt evenly, naming the numbers of processes that can.
    """
    if groups % world:
        valid = [n for n in range(1, groups + 1) if groups % n == 0]
        raise DataError(f"{groups} groups cannot be shared evenly by {world} processes; valid: {valid}")
    each = groups // world
    return range(rank * each, (rank + 1) * each)
