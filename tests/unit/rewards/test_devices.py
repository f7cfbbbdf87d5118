"""A model's inputs go where its weights are: a device's name may mean another GPU in another thread."""

from __future__ import annotations

import ast
from pathlib import Path

import torch
from PIL import Image

from paco_core.models.open_clip import OpenClip

SCORING = ("io", "rewards", "benchmarks", "reward_model")


def test_pictures_and_texts_follow_the_model(repository: Path) -> None:
    folder, pictures = repository / "data/zoo/clip", [Image.new("RGB", (8, 8))]
    clip = OpenClip(str(folder), "cpu")
    assert clip.images(pictures).device.type == "cpu"
    clip.model = clip.model.to("meta")
    assert clip.images(pictures).device.type == clip.texts(["a cat"]).device.type == "meta"
    assert clip.device == torch.device("meta")


def test_no_scorer_keeps_the_name_of_a_device(repository: Path) -> None:
    """``self.device = device`` in what scores, or ``.to("cuda")``, would name a device and not the model's own."""
    kept = []
    for room in SCORING:
        for path in (repository / "paco_core" / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                named = isinstance(node, ast.Attribute) and node.attr == "device" and isinstance(node.ctx, ast.Store)
                moved = (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in ("to", "cuda")
                    and any(isinstance(a, ast.Constant) and isinstance(a.value, str) for a in node.args)
                )
                if named or moved:
                    kept.append(f"{path.relative_to(repository)}:{node.lineno}")
    assert kept == []
