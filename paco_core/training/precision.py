"""How float32 matrices are multiplied beside a half-precision model."""

from __future__ import annotations

import torch


def allow_tf32(device: str, dtype: str) -> None:
    """Multiply float32 matrices in TF32 from here on, where a model is trained in bfloat16 on a GPU.

    An adapter's weights are float32 beside frozen ones of bfloat16, and so are its products: more than half of the
    products of a pass. TF32 has three bits more than the bfloat16 beside it and runs on the tensor cores. A model in
    float32 keeps full precision.
    """
    if device.startswith("cuda") and dtype == "bfloat16":
        torch.set_float32_matmul_precision("high")
