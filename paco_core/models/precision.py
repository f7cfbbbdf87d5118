"""Number formats of ``params.yaml``: those of weights, and of passes without gradients."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch

from paco_core.io.files import DataError

MIXED = "mixed"  # float32 weights; passes without gradients in bfloat16 if the device supports it natively
_BFLOAT16 = ("avx512_bf16", "amx_bf16")  # names of the CPU capabilities


def weights_format(dtype: str) -> torch.dtype:
    """The number format of weights for a ``dtype`` of params.yaml."""
    return torch.float32 if dtype == MIXED else getattr(torch, dtype)  # type: ignore[no-any-return]


@lru_cache
def computes_bfloat16(device: str) -> bool:
    """Whether a device supports bfloat16 natively. Otherwise it is emulated, which is slower than float32."""
    if device.startswith("cuda"):
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device == "cpu" and any(torch.cpu.get_capabilities().get(name) for name in _BFLOAT16)


@lru_cache
def _quieten() -> None:
    """Add the filter once and keep it, because filters are global and other threads may change them."""
    warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")  # torch's, of norms under autocast


@contextmanager
def inference_autocast(device: str, dtype: str) -> Iterator[None]:
    """Context for passes without gradients. With ``mixed``, this thread multiplies and convolves in bfloat16.

    It has no effect for other formats, or if the device does not support bfloat16 natively.
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


def release_gpu_memory(device: str) -> None:
    """Release the memory of freed tensors to the GPU, for other processes and larger tensors."""
    if device.startswith("cuda"):
        gc.collect()  # models contain reference cycles
        torch.cuda.empty_cache()
