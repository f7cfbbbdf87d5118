"""Sample image of a model card: images of the base model and of the trained policy for the same prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image as pil

from paco_core.grpo.evaluation import Evaluation, picture_names
from paco_core.io.pictures import join_in_row, read_image

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.data.records.records import PromptRecord
    from paco_core.grpo.scoring import Reference

SAMPLE = "sample.png"
PROMPTS = 3
HEIGHT = 256  # pixels of each row


def card_sample(
    before: Path,
    after: Evaluation,
    records: Sequence[PromptRecord],
    seeds: Sequence[int],
    reference: Reference | None,
) -> Image:
    """Images of the first prompts at the largest evaluation size and the first seed, one row per prompt.

    Args:
        before: folder with the images of the base model, as :func:`.evaluation.save_pictures` writes it.
        after: evaluation of the trained policy.
        records: prompts of the evaluation.
        seeds: seeds of the evaluation.
        reference: returns the input images of an edit, which are the first in their row; None without edits.
    """
    side, rows = max(after.pictures), list[Sequence["Image"]]()
    names = picture_names(records, seeds)
    for number, record in enumerate(records[:PROMPTS]):
        place = number * len(seeds)
        inputs = [] if reference is None else reference(record)
        rows.append([*inputs, read_image(before / str(side) / names[place]), after.pictures[side][place]])
    return _stacked([join_in_row(images, HEIGHT) for images in rows])


def _stacked(rows: Sequence[Image]) -> Image:
    """The rows below each other, aligned left, on white."""
    sheet, top = pil.new("RGB", (max(row.width for row in rows), sum(row.height for row in rows)), "white"), 0
    for row in rows:
        sheet.paste(row, (0, top))
        top += row.height
    return sheet
