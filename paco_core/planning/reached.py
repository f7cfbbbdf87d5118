"""Which share of an H100's peak the passes reach in bfloat16: what a GPU measured, and what the roofline allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

H100_FLOPS = 989e12  # dense bf16, from its data sheet; an H200 computes as fast
Kind = Literal["FluxTransformer2DModel", "QwenImageTransformer2DModel", "Flux2Transformer2DModel"]


@dataclass(frozen=True)
class Reached:
    """Shares of the peak that a pass without and one with gradient reach."""

    sampling: float
    training: float

    def seconds(self, sampled: float, trained: float) -> float:
        """That an H100 takes for so many floating point operations without and with gradient."""
        return (sampled / self.sampling + trained / self.training) / H100_FLOPS


#: By `make gpu` at 512 px with the batches of the profile *paper* (docs/reference/gpu.md).
MEASURED_ON = "one H200, torch 2.11, 2026-11-26"
MEASURED: dict[Kind, Reached] = {
    "FluxTransformer2DModel": Reached(0.34, 0.26),
    "QwenImageTransformer2DModel": Reached(0.32, 0.23),
    "Flux2Transformer2DModel": Reached(0.34, 0.26),  # not measured: taken to be FLUX's
}
#: At best, on fake tensors (`python -m speed.roofline`): more than half of a pass moves memory.
ROOFLINE: dict[Kind, Reached] = {
    "FluxTransformer2DModel": Reached(0.40, 0.31),
    "QwenImageTransformer2DModel": Reached(0.41, 0.28),
    "Flux2Transformer2DModel": Reached(0.40, 0.31),  # taken to be FLUX's
}
