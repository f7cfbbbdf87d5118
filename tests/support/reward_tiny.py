"""Pictures and labelled pairs for the tests of the reward model."""

from __future__ import annotations

import random
from typing import Any

from PIL import Image

from paco_core.reward_model.examples import Example
from paco_core.reward_model.instructions import render_instruction

#: A section ``reward`` of params.yaml that suits ``tiny_vlm``.
PARAMS: dict[str, Any] = {
    "base": "data/zoo/tiny",
    "device": "cpu",
    "dtype": "float32",
    "min_pixels": 3136,
    "max_pixels": 3136,
    "lora": {"rank": 4, "alpha": 8, "targets": ["q_proj", "v_proj", "down_proj"]},
    "loss": "weighted",
    "alpha": 0.1,
    "template": "theme",
    "learning_rate": 3e-3,
    "warmup_share": 0.1,
    "epochs": 2,
    "batch_size": 4,
    "accumulation": 1,
    "max_grad_norm": 1.0,
    "best": "last",
    "seed": 0,
}


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
            instruction=render_instruction("theme", theme="the same style" if number % 3 else "red and the first frog"),
            answer=answers[number % 2 == 0][0 if reasons and number % 5 else 1],
        )
        for number in range(count)
    ]
