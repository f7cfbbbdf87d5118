"""Quantized reward models: the weights of the language model have fewer bits than the computation.

The vision tower and the LM head are not quantized, because a score is the difference of two rows of the head.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from paco_core.io.files import DataError

#: Packages behind vLLM's option of the same name, here: bitsandbytes' 4-bit NormalFloat in blocks of 64, and torchao's
#: float8 by row, weights only (transformers' own "fp8" needs kernels from a hub).
LIBRARIES = {"bitsandbytes": "bitsandbytes", "fp8": "torchao"}
NOT_QUANTIZED = ["model.visual", "lm_head"]


def validate_quantization(quantization: str | None) -> None:
    """Check the requirements of a quantization of the embedded engine.

    Raises:
        DataError: if its library is not installed.
    """
    if quantization is not None and find_spec(LIBRARIES[quantization]) is None:
        raise DataError(
            f"serving.quantization {quantization} needs {LIBRARIES[quantization]}, which is not installed; "
            f"`uv pip install {LIBRARIES[quantization]}`, or leave it null"
        )


def reward_quantization(quantization: str | None, device: str) -> dict[str, Any]:
    """Options of ``from_pretrained``. Empty for None.

    Raises:
        DataError: as :func:`validate_quantization`.
    """
    if quantization is None:
        return {}
    validate_quantization(quantization)
    import torch
    import transformers

    if quantization == "bitsandbytes":
        config: Any = transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=torch.bfloat16,
            llm_int8_skip_modules=NOT_QUANTIZED,
        )
    else:
        from torchao.quantization import Float8WeightOnlyConfig

        config = transformers.TorchAoConfig(Float8WeightOnlyConfig(), modules_to_not_convert=NOT_QUANTIZED)
    return {"quantization_config": config, "device_map": {"": device}}
