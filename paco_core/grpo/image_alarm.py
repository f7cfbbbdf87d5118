"""Image alarm: content that vanishes from the images of a policy, or panels that become copies, since its start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from paco_core.config.measures import COPIES, IMAGE_CONTENT, NEAR_COPIES
from paco_core.config.params import HackMeter
from paco_core.data.image_measures import (
    brightness,
    color_entropy,
    copied_panels,
    edge_density,
    pixel_distances,
    reference_distance,
)
from paco_core.data.records.characters import load_images
from paco_core.data.records.panels import split_grid
from paco_core.data.records.records import PromptRecord

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.grpo.scoring import Reference

NEAR_COPY = float(HackMeter.model_fields["near_copy"].default)  # if a recipe has no hack meter
#: Smallest accepted share of the value at the start. In a public report (Tencent-Hunyuan/UniRL, pull request 407) a
#: reward for legible text removed the backgrounds: edge density -60%, color entropy -54%. The limits are half of that.
#: The three trainings of the demo change edge density by -1% to +8%, and color entropy by -2% to +1%.
LEAST_SHARES = {"edge_density": 0.7, "color_entropy": 0.7}
#: Largest accepted change in either direction, on the scale 0 to 1. In the report above, brightness falls from 0.27 to
#: 0.07. The trainings of the demo change it by at most 0.01.
LARGEST_CHANGES = {"mean_brightness": 0.15}
#: Largest accepted rise. The trainings of the demo raise the share of near-copies by at most 0.01.
LARGEST_RISES = {NEAR_COPIES: 0.2, COPIES: 0.2}


def image_content(
    pictures: Sequence[Image], records: Sequence[PromptRecord], bound: float, reference: Reference | None = None
) -> dict[str, float]:
    """The measures :data:`~paco_core.config.measures.IMAGE_CONTENT`, means over pictures of one evaluation size.

    If records have characters, also ``copies`` (:func:`copied_share`), the mean over their stories.

    Args:
        records, bound, reference: as of :func:`near_copies`.
    """
    values = (
        near_copies(pictures, records, bound, reference),
        *(
            float(np.mean([measure(image) for image in pictures]))
            for measure in (edge_density, color_entropy, brightness)
        ),
    )
    content = dict(zip(IMAGE_CONTENT, values, strict=True))
    if any(record.characters for record in records):
        panels = [split_grid(image, record.layout) for image, record in zip(pictures, records, strict=True)]
        content[COPIES] = float(np.nanmean(list(map(copied_share, records, panels))))
    return content


def is_copied(record: PromptRecord, panels: Sequence[Image]) -> np.ndarray:
    """Whether each panel of a story is a near-copy of a character's image or of another panel: (panels,) bool.

    Raises:
        DataError: if an image of a character cannot be read.
    """
    references = [image for character in record.characters for image in load_images(character)]
    return copied_panels(panels, references, NEAR_COPY)


def copied_share(record: PromptRecord, panels: Sequence[Image]) -> float:
    """Share of the panels that :func:`is_copied` marks, 0 to 1; NaN if the record has no characters."""
    return float(is_copied(record, panels).mean()) if record.characters else float("nan")


def near_copies(
    pictures: Sequence[Image], records: Sequence[PromptRecord], bound: float, reference: Reference | None = None
) -> float:
    """Share of near copies among panel pairs, or among edits and their references: 0 to 1.

    Copies are the easiest way to be consistent, and an edit without changes is the easiest way to preserve content.
    NaN if no image has a pair.

    Args:
        bound: root mean square pixel difference below which a pair is a near copy, on the scale 0 to 1.
        reference: for edits, returns the reference images of a record.
    """
    differences: list[float] = []
    for picture, record in zip(pictures, records, strict=True):
        if reference is not None:
            differences.append(reference_distance(picture, reference(record)[0]))
        elif len(panels := split_grid(picture, record.layout)) > 1:
            differences.extend(pixel_distances(panels))
    return float(np.mean(np.array(differences) < bound)) if differences else float("nan")


def image_alarm(start: Mapping[str, float], row: Mapping[str, float]) -> str | None:
    """The reason for an alarm about the images of one evaluation, or None.

    Args:
        start, row: rows of a training log: that of the evaluation before training, and a later one. A measure that
            either row lacks raises no alarm.
    """
    reasons = []
    for key, value in row.items():
        group, _, place = key.partition("/")
        size, _, measure = place.partition("/")
        if group == "eval" and key in start and _is_alarming(measure, start[key], value):
            reasons.append(f"{measure.replace('_', ' ')} at {size} px went from {start[key]:.3f} to {value:.3f}")
    if not reasons:
        return None
    return f"the images of epoch {row['epoch']:.0f} differ from those before training: {', '.join(reasons)}"


def _is_alarming(measure: str, before: float, now: float) -> bool:
    if measure in LEAST_SHARES:
        return now < LEAST_SHARES[measure] * before
    if measure in LARGEST_CHANGES:
        return abs(now - before) > LARGEST_CHANGES[measure]
    return measure in LARGEST_RISES and now - before > LARGEST_RISES[measure]


def first_image_alarm(rows: Sequence[Mapping[str, float]]) -> str | None:
    """The :func:`image_alarm` of the first evaluation that raised one, or None.

    Args:
        rows: of a training log. The first is that of the evaluation before training.
    """
    reasons = (image_alarm(rows[0], row) for row in rows[1:])
    return next((reason for reason in reasons if reason is not None), None)
