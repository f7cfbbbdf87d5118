"""Records, panels and pictures for the tests of rewards."""

from __future__ import annotations

import numpy as np
from PIL import Image

from paco_core.data.records.records import PromptRecord
from paco_core.rewards.base import RewardBatch

COLOURS = ["red", "green", "blue", "white"]


def make_record(layout: str = "2x2", idx: str = "p") -> PromptRecord:
    marks = {
        "2x2": "[TOP]-[LEFT]: {} [TOP]-[RIGHT]: {} [BOTTOM]-[LEFT]: {} [BOTTOM]-[RIGHT]: {}",
        "1x1": "[PANEL-1]: {}",
    }
    return PromptRecord(
        idx=idx,
        prompt="A grid of animals. " + marks[layout].format("a cat", "a dog", "a cow", "a hen"),
        height=64,
        width=64,
        layout=layout,
        theme="animals",
        category="Character",
        task_name="Multi-pose",
        criteria={},
    )


def panels(count: int = 4) -> list[Image.Image]:
    return [Image.new("RGB", (16, 16), colour) for colour in COLOURS[:count]]


def picture(seed: int = 0) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def image_batch(*pictures: Image.Image, prompt: str | None = None) -> RewardBatch:
    record = make_record()
    record = record if prompt is None else record.model_copy(update={"prompt": prompt})
    return RewardBatch([record] * len(pictures), [panels()] * len(pictures), list(pictures))
