"""MMRB2's pairs of edits in their layout, with images of one color."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image

SOURCE, GOOD, BAD = (10, 0, 0), (0, 20, 0), (0, 0, 30)


def mmrb2_pair(number: int, chosen: str = "A", **changes: Any) -> dict[str, Any]:
    """A pair of ``edit.json``. The chosen response has the image of the better edit."""
    images = {"A": f"images/{number}_a_0.png", "B": f"images/{number}_b_0.png"}
    return {
        "id": f"dreambench__{number}_gemini-2.5-flash_{number}",
        "prompt_content": [["text", "Make"], ["image", f"input_images/{number}_prompt_0.png"], ["text", "it green."]],
        "prompt_source": "dreambench",
        "prompt_metadata": {"id": number},
        "response_a": {"model_name": "gemini-2.5-flash", "response_content": [["image", images["A"]]]},
        "response_b": {
            "model_name": "gpt-image-1", "response_content": [["text", "Done."], ["image", images["B"]]],
        },
        "chosen": chosen,
        "human_annotations": [6, 6, 6],
    } | changes  # fmt: skip


def write_mmrb2(folder: Path, pairs: list[dict[str, Any]]) -> Path:
    """As ``build_from_hf.py`` writes it."""
    for name in ("images", "input_images"):
        (folder / name).mkdir(parents=True)
    for number, entry in enumerate(pairs):
        colors = {entry.get("chosen"): GOOD, "B" if entry.get("chosen") == "A" else "A": BAD}
        Image.new("RGB", (24, 16), SOURCE).save(folder / f"input_images/{number}_prompt_0.png")
        for name in "AB":
            Image.new("RGB", (24, 16), colors.get(name, BAD)).save(folder / f"images/{number}_{name.lower()}_0.png")
    (folder / "edit.json").write_text(json.dumps({"pairs": pairs}))
    return folder
