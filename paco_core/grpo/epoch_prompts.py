"""Which prompts an epoch trains on, as a pure function of the epoch, so that resuming needs no state."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from paco_core.io.files import DataError

if TYPE_CHECKING:
    from paco_core.config.params import PolicyRecipe


def prompts_of_epoch(available: int, count: int, epoch: int, seed: int) -> list[int]:
    """Indices of ``count`` distinct prompts for epoch 0, 1, ...

    Epochs deal out one shuffled deck after another, so that every prompt is met equally often.

    Raises:
        DataError: when fewer prompts are there than one epoch needs.
    """
    if available < count:
        raise DataError(
            f"prompts_per_epoch={count}, but there are only {available} training prompts; "
            f"choose at most {available} or make more prompts"
        )
    deals = available // count
    deck = list(range(available))
    random.Random(f"{seed}|{epoch // deals}").shuffle(deck)
    start = (epoch % deals) * count
    return deck[start : start + count]


def refuse_uneven(sizes: Sequence[Hashable], recipe: PolicyRecipe, world: int) -> None:
    """Find, before any model is loaded, an epoch whose rollout batches the processes cannot share evenly.

    Pictures of several sizes are in batches of their own, of which epochs have different numbers: processes without one
    wait for the others.

    Args:
        sizes: of the picture of each training prompt; a batch holds pictures of one size.
        world: number of processes.

    Raises:
        DataError: as :func:`prompts_of_epoch` and :func:`refuse_uneven_batches`.
    """
    rows = prompts_of_epoch(len(sizes), recipe.prompts_per_epoch, 0, recipe.seed)
    if not recipe.offline and len(set(sizes)) == 1:
        refuse_uneven_batches(-(-len(rows) * recipe.group_size // recipe.rollout_batch), world)


def refuse_split_groups(groupwise: Sequence[str], recipe: PolicyRecipe, world: int) -> None:
    """Rewards that look at whole groups need them whole in one process.

    Args:
        groupwise: names of such rewards.
        world: number of processes.

    Raises:
        DataError: naming a rollout batch of whole groups.
    """
    if groupwise and world > 1 and recipe.rollout_batch % recipe.group_size:
        near = max(1, round(recipe.rollout_batch / recipe.group_size)) * recipe.group_size
        raise DataError(
            f"reward {groupwise[0]} looks at whole groups, and policies.defaults.rollout_batch="
            f"{recipe.rollout_batch} splits groups of {recipe.group_size} across processes; choose {near}"
        )


def noise_steps_of_epoch(candidates: Sequence[int], count: int | None, epoch: int, seed: int) -> list[int]:
    """The noise steps of epoch 0, 1, ...: all of ``candidates``, or ``count`` of them drawn anew for each epoch."""
    if count is None:
        return list(candidates)
    return sorted(random.Random(f"noise steps|{seed}|{epoch}").sample(list(candidates), count))


def refuse_uneven_batches(batches: int, world: int) -> None:
    """Raise DataError when processes would wait for others in every epoch, naming the numbers that share it evenly.

    Batches are cut before they are dealt, so that what a batch holds, and with it every rounding, does not
    depend on the number of processes.
    """
    if batches % world:
        valid = [n for n in range(1, batches + 1) if batches % n == 0]
        raise DataError(
            f"{batches} rollout batches per epoch cannot be divided evenly among {world} processes; valid numbers of "
            f"processes: {valid}, or change policies.defaults.rollout_batch"
        )
