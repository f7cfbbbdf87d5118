"""Pictures and labelled pairs for the tests of the reward model."""

from __future__ import annotations

import random

from PIL import Image

from paco_core.reward_model.examples import Example
from paco_core.reward_model.instructions import render


def picture(seed: int, side: int = 32) -> Image.Image:
    """Noise, so that no two seeds give the same vision features."""
    return Image.frombytes("RGB", (side, side), random.Random(seed).randbytes(3 * side * side))


def pairs(count: int, *, reasons: bool = True) -> list[Example]:
    """Alternating labels over few pictures, with answers of two lengths."""
    answers = {
        True: ("Yes. The style is the same.", "Yes."),
        False: ("No. The animal differs: the first shows cat and the second shows frog.", "No."),
    }
    return [
        Example(
            id=f"pair-{number}",
            images=(picture(number % 5), picture(100 + number % 7)),
            instruction=render("theme", theme="the same style" if number % 3 else "red and the first frog"),
            answer=answers[number % 2 == 0][0 if reasons and number % 5 else 1],
        )
        for number in range(count)
    ]
