"""Pairs of drawn panels: what a model can be asked where no pairs are at hand. They carry no label."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from paco_core.storybook.drawing import draw
from paco_core.storybook.prompts import KINDS, character, random_set
from paco_core.storybook.world import random_panel

if TYPE_CHECKING:
    from PIL.Image import Image


def drawn_pairs(count: int, side: int, seed: int = 0) -> list[tuple[Image, Image, str]]:
    """(first, second, theme) of ``count`` pairs, ``side`` x ``side`` pixels, the same for equal arguments.

    In turns both panels are of one set, and the second is of another one.
    """
    pairs = []
    for number in range(count):
        rng = random.Random(f"drawn-pairs-{seed}-{number}")
        kind, (first, second) = random_set(rng.randrange(len(KINDS)), 2, rng)
        theme = KINDS[kind][3].format(who=character(first), style=first.style)
        if number % 2:
            second = random_panel(rng)
        pairs.append((draw(first, side, rng), draw(second, side, rng), theme))
    return pairs
