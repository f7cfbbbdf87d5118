"""Records, panels and pictures for the tests of rewards."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image

from paco_core.data.records.characters import Character
from paco_core.data.records.records import PromptRecord
from paco_core.rewards.base import RewardBatch

COLOURS = ["red", "green", "blue", "white"]


def make_record(layout: str = "2x2", idx: str = "p") -> PromptRecord:
    marks = {
        "2x2": "[TOP]-[LEFT]: {} [TOP]-[RIGHT]: {} [BOTTOM]-[LEFT]: {} [BOTTOM]-[RIGHT]: {}",
        "1x1": "[PANEL-1]: {}",
    }
    row = {
        "idx": idx,
        "prompt": "A grid of animals. " + marks[layout].format("a cat", "a dog", "a cow", "a hen"),
        "height": 64,
        "width": 64,
        "layout": layout,
        "theme": "animals",
        "category": "Character",
        "task_name": "Multi-pose",
        "criteria": {},
    }
    return PromptRecord.model_validate(row)


def image_source(colour: str, side: int = 16) -> str:
    """A data URL of a picture in one colour."""
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def make_story(*texts: str, idx: str = "p", side: int = 16, **characters: list[str]) -> PromptRecord:
    """A record of panels in one row, and characters by name, each with images of these colours."""
    marks = " ".join(f"[PANEL-{number}]: {text}" for number, text in enumerate(texts, 1))
    row = make_record(idx=idx).model_dump() | {"layout": f"1x{len(texts)}", "prompt": f"A story. {marks}"}
    images = [Character(name, tuple(image_source(c, side) for c in colours)) for name, colours in characters.items()]
    return PromptRecord.model_validate(row | ({"characters": images} if images else {}))


def panels(count: int = 4) -> list[Image.Image]:
    return [Image.new("RGB", (16, 16), colour) for colour in COLOURS[:count]]


def picture(seed: int = 0) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def image_batch(*pictures: Image.Image, prompt: str | None = None) -> RewardBatch:
    record = make_record()
    record = record if prompt is None else record.model_copy(update={"prompt": prompt})
    return RewardBatch([record] * len(pictures), [panels()] * len(pictures), list(pictures))
