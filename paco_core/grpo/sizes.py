"""Image sizes: the recipe's scale, the record's shape."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from paco_core.data.records.panels import grid_size
from paco_core.data.records.records import PromptRecord
from paco_core.io.files import DataError, read_json
from paco_core.policies.base import Size
from paco_core.policies.families import family_of, predecessors_of

if TYPE_CHECKING:
    from paco_core.config.params import PolicyRecipe

Shape = TypeVar("Shape", bound=Hashable)
RecordSize = Literal["aspect", "exact", "ignore"]


def picture_size(record: PromptRecord, side: int, rule: RecordSize, multiple: int, *, apart: bool = False) -> Size:
    """Height and width in pixels.

    Args:
        side: scale of a training or an evaluation: the side of a square picture of 2x2 panels, or of one panel.
        rule: ``aspect`` = the record's proportions, with panels of as many pixels as those of 2x2 panels in side x side
            (a single panel has all of them); ``exact`` = the record's own height and width, whatever the side;
            ``ignore`` = side x side.
        multiple: pixels that the model's sides are multiples of; panels are whole multiples of a pixel besides.
        apart: each panel is painted as a picture of its own.
    """
    if rule == "ignore":
        return side, side
    if rule == "exact":
        return record.height, record.width
    height, width = grid_size(record.layout, (side, side))
    if height * record.width == width * record.height:  # square panels
        return height, width
    high, wide = (_step(multiple, count, apart=apart) for count in record.grid)
    scale, stretch = math.sqrt(height * width), math.sqrt(record.height / record.width)
    return max(1, round(scale * stretch / high)) * high, max(1, round(scale / stretch / wide)) * wide


def _step(multiple: int, count: int, *, apart: bool) -> int:
    """Pixels that the side of a picture of so many panels is a multiple of."""
    return multiple * count if apart else math.lcm(multiple, count)


@dataclass(frozen=True)
class ImageGrid:
    """Height and width of a picture, and the rows and columns of parts in which it is painted; 1 x 1 = at once."""

    size: Size
    grid: tuple[int, int] = (1, 1)

    @classmethod
    def from_record(
        cls, record: PromptRecord, side: int, rule: RecordSize, multiple: int, predecessors: int
    ) -> ImageGrid:
        """As :func:`picture_size`; ``predecessors`` 0 = all panels are painted at once."""
        size = picture_size(record, side, rule, multiple, apart=predecessors > 0)
        return cls(size, record.grid if predecessors else (1, 1))

    @property
    def parts(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def part_size(self) -> Size:
        """Height and width of a part."""
        return self.size[0] // self.grid[0], self.size[1] // self.grid[1]


def grids_of(recipe: PolicyRecipe, records: Iterable[PromptRecord], side: int, multiple: int) -> list[ImageGrid]:
    """The grid of each record's image, ``side`` as of :func:`picture_size`."""
    before = predecessors_of(recipe)
    return [ImageGrid.from_record(record, side, recipe.record_size, multiple, before) for record in records]


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


def validate_sizes(records: Iterable[PromptRecord], recipe: PolicyRecipe, multiple: int) -> None:
    """Find picture sizes that the model's packing or a record's panels do not divide, before it is loaded.

    Nor may a panel be smaller than a token, which would show two panels at once, or, where it is a reference picture,
    smaller or longer than the family takes.

    Raises:
        DataError: naming the record, the size, and the nearest ones.
    """
    apart, family = predecessors_of(recipe) > 0, family_of(recipe.family)
    smallest = max(multiple, family.least_reference if apart else 1)
    shapes: dict[tuple[str, int, int], PromptRecord] = {}
    for record in records:
        shapes.setdefault((record.layout, record.height, record.width), record)
    for record in shapes.values():
        for side in dict.fromkeys([recipe.train_size, *recipe.eval_sizes]):
            high, wide = picture_size(record, side, recipe.record_size, multiple, apart=apart)
            steps = [_step(multiple, count, apart=apart) for count in record.grid]
            least = [smallest * count for count in record.grid]
            if high % steps[0] or wide % steps[1]:
                near = [
                    max(floor, round(pixels / step) * step)
                    for pixels, step, floor in zip((high, wide), steps, least, strict=True)
                ]
                raise DataError(
                    f"record {record.idx}: a picture of {high} x {wide} does not divide into {multiple} px tokens and "
                    f"{record.layout} panels; the nearest that does is {near[0]} x {near[1]} (train_size, eval_sizes, "
                    "or the record's own size)"
                )
            panel = [pixels // count for pixels, count in zip((high, wide), record.grid, strict=True)]
            if min(panel) < smallest:
                what = "its reference pictures" if smallest > multiple else "the model's tokens"
                raise DataError(
                    f"record {record.idx}: panels of {panel[0]} x {panel[1]} px ({record.layout} in a picture of "
                    f"{high} x {wide}) are smaller than {what} of {smallest} px; a picture needs "
                    f"{least[0]} x {least[1]} at least: raise train_size or eval_sizes"
                )
            if apart and max(panel) > family.longest_reference * min(panel):
                raise DataError(
                    f"record {record.idx}: panels of {panel[0]} x {panel[1]} px are no reference pictures for "
                    f"{recipe.family}, which takes sides of 1 to {family.longest_reference:g} at most; change the "
                    "record's height and width, or choose panels: together"
                )


def buckets(sizes: Sequence[Shape]) -> dict[Shape, list[int]]:
    """Places of each size, or grid, in order of first appearance: one batch holds pictures of one."""
    places_of: dict[Shape, list[int]] = {}
    for place, size in enumerate(sizes):
        places_of.setdefault(size, []).append(place)
    return places_of
