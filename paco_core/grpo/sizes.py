"""How large each prompt's picture is: the recipe's scale, the record's shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from paco_core.dataset.records import PromptRecord
from paco_core.policies.base import Size

RecordSize = Literal["aspect", "exact", "ignore"]


def picture_size(record: PromptRecord, side: int, rule: RecordSize, multiple: int) -> Size:
    """Height and width in pixels.

    Args:
        side: scale of a training or an evaluation: the side of a square picture.
        rule: ``aspect`` = a picture of about side x side pixels in the record's proportions; ``exact`` = the
            record's own height and width, whatever the side; ``ignore`` = side x side.
        multiple: pixels that the model's sides are multiples of; panels are whole multiples of a pixel besides.
    """
    if rule == "ignore" or (rule == "aspect" and record.height == record.width):
        return side, side
    if rule == "exact":
        return record.height, record.width
    rows, columns = record.grid
    high, wide = math.lcm(multiple, rows), math.lcm(multiple, columns)
    stretch = math.sqrt(record.height / record.width)
    return max(1, round(side * stretch / high)) * high, max(1, round(side / stretch / wide)) * wide


def buckets(sizes: Sequence[Size]) -> dict[Size, list[int]]:
    """Places of each size, in order of first appearance: one batch holds pictures of one size."""
    found: dict[Size, list[int]] = {}
    for place, size in enumerate(sizes):
        found.setdefault(size, []).append(place)
    return found
