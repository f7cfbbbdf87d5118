"""How large each prompt's picture is: the recipe's scale, the record's shape."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from paco_core.data.records.records import PromptRecord
from paco_core.data.records.subfigures import grid_size
from paco_core.io.files import DataError, read_json
from paco_core.policies.base import Size

if TYPE_CHECKING:
    from paco_core.config.params import PolicyRecipe

RecordSize = Literal["aspect", "exact", "ignore"]


def picture_size(record: PromptRecord, side: int, rule: RecordSize, multiple: int) -> Size:
    """Height and width in pixels.

    Args:
        side: scale of a training or an evaluation: the side of a square picture of 2x2 panels, or of one panel.
        rule: ``aspect`` = the record's proportions, with panels of as many pixels as those of 2x2 panels in side x side
            (a single panel has all of them); ``exact`` = the record's own height and width, whatever the side;
            ``ignore`` = side x side.
        multiple: pixels that the model's sides are multiples of; panels are whole multiples of a pixel besides.
    """
    if rule == "ignore":
        return side, side
    if rule == "exact":
        return record.height, record.width
    height, width = grid_size(record.layout, (side, side))
    if height * record.width == width * record.height:  # square panels
        return height, width
    rows, columns = record.grid
    high, wide = math.lcm(multiple, rows), math.lcm(multiple, columns)
    scale, stretch = math.sqrt(height * width), math.sqrt(record.height / record.width)
    return max(1, round(scale * stretch / high)) * high, max(1, round(scale / stretch / wide)) * wide


#: Pixels that a token of the families' public models is high and wide.
PUBLIC_TOKEN = 16


def token_pixels(model: Path) -> int | None:
    """Pixels that a token of a pipeline is high and wide, from its folder; None where that does not say.

    A model of the hub, which is not here yet, has that of the public ones.

    The autoencoder halves once less than it has widths (FLUX) or once a step (Qwen-Image), packing halves once more.
    """
    if not model.is_dir():
        return PUBLIC_TOKEN
    config = model / "vae" / "config.json"
    vae = read_json(config) if config.is_file() else {}
    halvings = len(vae.get("block_out_channels", ())) or len(vae.get("temperal_downsample", ())) + 1
    return None if halvings == 1 else 2**halvings


def refuse_sizes(records: Iterable[PromptRecord], recipe: PolicyRecipe, multiple: int) -> None:
    """Find picture sizes that the model's packing or a record's panels do not divide, before it is loaded.

    Nor may a panel be smaller than a token, which would show two panels at once.

    Raises:
        DataError: naming the record, the size, and the nearest ones.
    """
    for record in records:
        for side in dict.fromkeys([recipe.train_size, *recipe.eval_sizes]):
            high, wide = picture_size(record, side, recipe.record_size, multiple)
            steps, least = ([of(multiple, count) for count in record.grid] for of in (math.lcm, operator.mul))
            if high % steps[0] or wide % steps[1]:
                near = [
                    max(smallest, round(pixels / step) * step)
                    for pixels, step, smallest in zip((high, wide), steps, least, strict=True)
                ]
                raise DataError(
                    f"record {record.idx}: a picture of {high} x {wide} does not divide into {multiple} px tokens and "
                    f"{record.layout} panels; the nearest that does is {near[0]} x {near[1]} (train_size, eval_sizes, "
                    "or the record's own size)"
                )
            panel = [pixels // count for pixels, count in zip((high, wide), record.grid, strict=True)]
            if min(panel) < multiple:
                raise DataError(
                    f"record {record.idx}: panels of {panel[0]} x {panel[1]} px ({record.layout} in a picture of "
                    f"{high} x {wide}) are smaller than the model's tokens of {multiple} px; a picture needs "
                    f"{least[0]} x {least[1]} at least: raise train_size or eval_sizes"
                )


def buckets(sizes: Sequence[Size]) -> dict[Size, list[int]]:
    """Places of each size, in order of first appearance: one batch holds pictures of one size."""
    found: dict[Size, list[int]] = {}
    for place, size in enumerate(sizes):
        found.setdefault(size, []).append(place)
    return found
