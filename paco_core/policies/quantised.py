"""Transformers that are kept in fewer bits than they compute in, by diffusers' own quantisation.

Only the layers that multiply are; an adapter stays float32 and is what is trained (QLoRA, arXiv 2305.14314).
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from paco_core.io.files import DataError

#: By whose kernels: bitsandbytes' 4-bit NormalFloat in blocks of 64, the format of QLoRA, and torchao's float8 by row.
#: Both pass gradients on to their inputs. optimum-quanto does, too, and is no longer maintained.
LIBRARIES = {"nf4": "bitsandbytes", "fp8": "torchao"}


def check_base(base: str | None) -> None:
    """Say early what a format of the base lacks.

    Raises:
        DataError: when its library is not installed.
    """
    if base is not None and find_spec(LIBRARIES[base]) is None:
        raise DataError(
            f"policies.defaults.base: {base} needs {LIBRARIES[base]}, which is not installed here; "
            f"`uv pip install {LIBRARIES[base]}`, or leave it null"
        )


def quantization(base: str | None, device: str) -> dict[str, Any]:
    """Options of ``from_pretrained`` that keep a transformer in ``base``; none for None.

    Raises:
        DataError: as :func:`check_base`.
    """
    if base is None:
        return {}
    check_base(base)
    import diffusers
    import torch

    if base == "nf4":
        config: Any = diffusers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
    else:
        from torchao.quantization import Float8WeightOnlyConfig

        config = diffusers.TorchAoConfig(Float8WeightOnlyConfig())
    return {"quantization_config": config, "device_map": {"": device}}
