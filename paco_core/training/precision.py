"""GPU kernels of a training, for matrix products and attention."""

from __future__ import annotations

import torch


def choose_kernels(device: str, dtype: str) -> None:
    """Set torch's kernels for a training. On a CPU, nothing changes.

    If the model is bfloat16, float32 matrices use TF32. The weights of an adapter and its products are float32 and take
    more than half of a pass. TF32 has three more bits than bfloat16 and runs on tensor cores. A float32 model keeps
    full precision.

    cuDNN attention is disabled: its backward in half precision returns NaN or reads invalid memory on H100 and H200
    with torch 2.11 to 2.13 (pytorch/pytorch#196678, huggingface/trl#7181; reproduced with these models on an H200).
    Flash and memory-efficient attention replace it.
    """
    if not device.startswith("cuda"):
        return
    torch.backends.cuda.enable_cudnn_sdp(False)
    if dtype == "bfloat16":
        torch.set_float32_matmul_precision("high")
