"""Number formats that ``params.yaml`` names: of weights, and of passes that only paint."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch

from paco_core.io.files import DataError

MIXED = "mixed"  # float32 weights; passes that only paint in bfloat16 where the device computes it natively
_BFLOAT16 = ("avx512_bf16", "amx_bf16")  # what a processor that computes it calls it


def weights_format(dtype: str) -> torch.dtype:
    """The number format of weights for a ``dtype`` of params.yaml."""
    return torch.float32 if dtype == MIXED else getattr(torch, dtype)  # type: ignore[no-any-return]


@lru_cache
def computes_bfloat16(device: str) -> bool:
    """Whether a device multiplies in bfloat16 itself; elsewhere it is emulated, and slower than float32."""
    if device.startswith("cuda"):
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device == "cpu" and any(torch.cpu.get_capabilities().get(name) for name in _BFLOAT16)


@lru_cache
def _quieten() -> None:
    """Once, not for the block alone: filters are the whole process's, and other threads may be changing them."""
    warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")  # torch's, of norms under autocast


@contextmanager
def painting(device: str, dtype: str) -> Iterator[None]:
    """For passes whose result is only looked at: under ``mixed``, products and convolutions of this thread in bfloat16.

    Nothing changes for other formats, nor where the device does not compute bfloat16 itself.
    """
    if dtype != MIXED or not computes_bfloat16(device):
        yield
        return
    _quieten()
    with torch.autocast(device.partition(":")[0], torch.bfloat16):
        yield


def validate_pixels(pixels: torch.Tensor, model: str) -> None:
    """Raise DataError when generated images contain NaN or infinity, which would become black pixels.

    Args:
        pixels: (images, ...).
        model: name of the model that generated them, for the error.
    """
    broken = int((~pixels.isfinite().flatten(1).all(dim=1)).sum())
    if broken:
        raise DataError(
            f"{model}: {broken} of {len(pixels)} generated images contain NaN or infinity: its weights or those of "
            "its adapter are too large for its number format; use another adapter, or dtype float32"
        )


def give_back(device: str) -> None:
    """Give what freed tensors took back to the GPU, where other processes and larger tensors find it in one piece."""
    if device.startswith("cuda"):
        gc.collect()  # models refer to themselves
        torch.cuda.empty_cache()
