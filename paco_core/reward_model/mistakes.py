"""Pictures of the pairs that a reward model got most wrong, for people to look at."""

from __future__ import annotations

from PIL import Image, ImageDraw, ImageFont

from paco_core.reward_model.examples import Example

SIDE, GAP, CAPTION = 224, 8, 44  # pixels
PAPER, INK = (255, 255, 255), (32, 32, 36)


def mistake(example: Example, score: float) -> Image.Image:
    """Both pictures of a pair side by side, its label and score below."""
    sheet = Image.new("RGB", (2 * SIDE + 3 * GAP, SIDE + 2 * GAP + CAPTION), PAPER)
    for number, image in enumerate(example.images):
        scale = SIDE / max(image.size)
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        filter_ = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
        sheet.paste(image.resize(size, filter_), (GAP + number * (SIDE + GAP), GAP))
    label = "Yes" if example.consistent else "No"
    lines = f"label {label}, score {score:.3f}\npair {example.id}"
    draw = ImageDraw.Draw(sheet)
    draw.multiline_text((GAP, SIDE + 2 * GAP), lines, INK, ImageFont.load_default(15), spacing=3)
    return sheet
