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
from paco_core.policies.families import family_of, max_predecessors

if TYPE_CHECKING:
    from paco_core.config.params import PolicyRecipe

Shape = TypeVar("Shape", bound=Hashable)
RecordSize = Literal["aspect", "exact", "ignore"]


def picture_size(record: PromptRecord, side: int, rule: RecordSize, multiple: int, *, apart: bool = False) -> Size:
    """Height and width in pixels.

    Args:
        side: scale of a training or an evaluation: the side of a square image of 2x2 panels, or of one panel.
        rule: ``aspect`` = the proportions of the record, with panels of as many pixels as those of 2x2 panels in
            side x side (a single panel has all pixels); ``exact`` = height and width of the record; ``ignore`` =
            side x side.
        multiple: height and width of the image are multiples of it, in pixels.
        apart: whether each panel is generated as a separate image.
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
    """The side of an image with ``count`` panels is a multiple of this number of pixels."""
    return multiple * count if apart else math.lcm(multiple, count)


@dataclass(frozen=True)
class ImageGrid:
    """Size of an image, and rows and columns of the parts that are generated one by one; 1 x 1 = the complete image."""

    size: Size
    grid: tuple[int, int] = (1, 1)

    @classmethod
    def from_record(
        cls, record: PromptRecord, side: int, rule: RecordSize, multiple: int, predecessors: int
    ) -> ImageGrid:
        """See :func:`picture_size`. ``predecessors``: 0 = all panels are generated together."""
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
    """The grid of each record's image. ``side``: see :func:`picture_size`."""
    before = max_predecessors(recipe)
    return [ImageGrid.from_record(record, side, recipe.record_size, multiple, before) for record in records]


#: Height and width of a token of the public models of all families, in pixels.
PUBLIC_TOKEN = 16


def side_multiple_of(model: Path, family: str) -> int | None:
    """The sides of a pipeline's images are multiples of this number of pixels. None if its configuration is incomplete.

    For a hub id, it is that of the public models of the family. The autoencoder halves an image once per width except
    the first (FLUX), or once per step (Qwen-Image). Packing halves it once more. The latents of Qwen-Image-2.1 are not
    packed, but an image token of its text encoder is 2 x 2 latents.
    """
    if not model.is_dir():
        return PUBLIC_TOKEN * family_of(family).side_tokens
    config = model / "vae" / "config.json"
    vae = read_json(config) if config.is_file() else {}
    halvings = len(vae.get("block_out_channels", ())) or len(vae.get("temperal_downsample", ())) + 1
    return None if halvings == 1 else 2**halvings


def validate_sizes(records: Iterable[PromptRecord], recipe: PolicyRecipe, multiple: int) -> None:
    """Validate that image sizes can be divided into tokens and panels, before the model is loaded.

    A panel must be at least as large as a token. If panels are reference images, their size and proportions must be
    supported by the family.

    Args:
        multiple: the sides of images are multiples of this number of pixels.

    Raises:
        DataError: with the record, the size, and the nearest valid size.
    """
    apart, family = max_predecessors(recipe) > 0, family_of(recipe.family)
    smallest = max(multiple, family.min_reference_side if apart else 1)
    shapes: dict[tuple[str, int, int], PromptRecord] = {}
    for record in records:
        shapes.setdefault((record.layout, record.height, record.width), record)
    for record in shapes.values():
        for side in dict.fromkeys([recipe.train_size, *recipe.eval_sizes]):
            height, width = picture_size(record, side, recipe.record_size, multiple, apart=apart)
            steps = [_step(multiple, count, apart=apart) for count in record.grid]
            least = [smallest * count for count in record.grid]
            if height % steps[0] or width % steps[1]:
                near = [
                    max(floor, round(pixels / step) * step)
                    for pixels, step, floor in zip((height, width), steps, least, strict=True)
                ]
                raise DataError(
                    f"record {record.idx}: an image of {height} x {width} px cannot be divided into {multiple} px "
                    f"tokens and {record.layout} panels; the nearest valid size is {near[0]} x {near[1]} (change "
                    "train_size, eval_sizes, or the size of the record)"
                )
            panel = [pixels // count for pixels, count in zip((height, width), record.grid, strict=True)]
            if min(panel) < smallest:
                limit = "the minimum of {} px for reference images" if smallest > multiple else "a token of {} px"
                raise DataError(
                    f"record {record.idx}: panels of {panel[0]} x {panel[1]} px ({record.layout} in an image of "
                    f"{height} x {width}) are smaller than {limit.format(smallest)}; the image needs at least "
                    f"{least[0]} x {least[1]} px: raise train_size or eval_sizes"
                )
            if apart and max(panel) > family.max_reference_ratio * min(panel):
                raise DataError(
                    f"record {record.idx}: panels of {panel[0]} x {panel[1]} px are too long for reference images of "
                    f"{recipe.family}, whose ratio of sides is at most {family.max_reference_ratio:g}; change the "
                    "height and width of the record, or choose panels: together"
                )


def buckets(sizes: Sequence[Shape]) -> dict[Shape, list[int]]:
    """Group indices by size or grid, in order of first appearance, because a batch has images of one size."""
    places_of: dict[Shape, list[int]] = {}
    for place, size in enumerate(sizes):
        places_of.setdefault(size, []).append(place)
    return places_of
