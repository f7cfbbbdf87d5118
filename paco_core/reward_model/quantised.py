"""A judge whose language model is kept in fewer bits than it computes in, by transformers' own quantisation.

The vision tower and the head stay as they are: a score is the difference of two rows of the head.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from paco_core.io.files import DataError

#: Packages behind vLLM's option of the same name, here: bitsandbytes' 4-bit NormalFloat in blocks of 64, and torchao's
#: float8 by row, weights only (transformers' own "fp8" needs kernels from a hub).
LIBRARIES = {"bitsandbytes": "bitsandbytes", "fp8": "torchao"}
AS_THEY_ARE = ["model.visual", "lm_head"]


def check_quantization(wanted: str | None) -> None:
    """Say early what the embedded engine lacks.

    Raises:
        DataError: when the library is not installed.
    """
    if wanted is not None and find_spec(LIBRARIES[wanted]) is None:
        raise DataError(
            f"serving.quantization {wanted} needs {LIBRARIES[wanted]}, which is not installed here; "
            f"`uv pip install {LIBRARIES[wanted]}`, or leave it null"
        )


def quantization(wanted: str | None, device: str) -> dict[str, Any]:
    """Options of ``from_pretrained``; none for None.

    Raises:
        DataError: as :func:`check_quantization`.
    """
    if wanted is None:
        return {}
    check_quantization(wanted)
    import torch
    import transformers

    if wanted == "bitsandbytes":
        config: Any = transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=torch.bfloat16,
            llm_int8_skip_modules=AS_THEY_ARE,
        )
    else:
        from torchao.quantization import Float8WeightOnlyConfig

        config = transformers.TorchAoConfig(Float8WeightOnlyConfig(), modules_to_not_convert=AS_THEY_ARE)
    return {"quantization_config": config, "device_map": {"": device}}
