"""Quantized transformers: the weights of linear layers have fewer bits than the computation.

The adapter stays float32 and is trained (QLoRA, arXiv 2305.14314).
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from paco_core.io.files import DataError

#: Library of each format: 4-bit NormalFloat in blocks of 64 (the format of QLoRA) and float8 by row. Both propagate
#: gradients to their inputs. optimum-quanto does as well, but is no longer maintained.
LIBRARIES = {"nf4": "bitsandbytes", "fp8": "torchao"}


def validate_base_format(base: str | None) -> None:
    """Check the requirements of a number format of the transformer.

    Raises:
        DataError: if its library is not installed.
    """
    if base is not None and find_spec(LIBRARIES[base]) is None:
        raise DataError(
            f"policies.defaults.base: {base} needs {LIBRARIES[base]}, which is not installed; "
            f"`uv pip install {LIBRARIES[base]}`, or leave it null"
        )


def transformer_quantization(base: str | None, device: str) -> dict[str, Any]:
    """Options of ``from_pretrained`` for a transformer in the format ``base``. Empty for None.

    Raises:
        DataError: as :func:`validate_base_format`.
    """
    if base is None:
        return {}
    validate_base_format(base)
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
