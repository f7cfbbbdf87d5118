"""Speed of GPUs: transformer passes per second, of the models and sizes that `make gpu` measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from paco_core.config.params import PolicyRecipe
from paco_core.io.files import read_json
from paco_core.policies.base import Size

RECORD = Path(__file__).with_name("gpu_speed.json")


@dataclass(frozen=True)
class GpuSpeed:
    """Passes of one image per second, at squares of ``side`` px with the batches of the profile *paper*.

    ``sampled`` = without gradient; ``trained`` = forward and backward with gradient checkpointing; ``references`` =
    number of reference images, as large as the image.
    """

    gpu: str
    date: str
    model: str
    side: int
    sampled: float
    trained: float
    references: int = 0

    def seconds(self, sampled: float, trained: float) -> float:
        """Seconds of so many passes without and with gradient."""
        return sampled / self.sampled + trained / self.trained


def measured_speeds(recipe: PolicyRecipe, sizes: Iterable[Size], references: Iterable[int]) -> list[GpuSpeed]:
    """Speeds of each GPU on record with a recipe's model, at the size of its images; none where they differ.

    Args:
        sizes: height and width of what its passes generate.
        references: numbers of reference images of its passes.
    """
    is_measured = recipe.dtype == "bfloat16" and recipe.base is None and recipe.reference_size is None
    if not is_measured:
        return []
    passes, speeds = (set(sizes), set(references)), [GpuSpeed(**row) for row in read_json(RECORD)]
    return [
        speed
        for speed in speeds
        if speed.model == recipe.model and passes == ({(speed.side, speed.side)}, {speed.references})
    ]
