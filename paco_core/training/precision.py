"""Which kernels of a GPU a training multiplies and attends with."""

from __future__ import annotations

import torch


def choose_kernels(device: str, dtype: str) -> None:
    """Set torch's kernels for a training, from here on; nothing changes on a CPU.

    TF32 for float32 matrices beside a model in bfloat16: an adapter's weights are float32, and so are its products,
    more than half of a pass. TF32 has three bits more than the bfloat16 beside it and runs on the tensor cores. A
    model in float32 keeps full precision.

    No attention by cuDNN: its backward in half precision gives NaN, or reads memory that is not its own, on H100 and
    H200 under torch 2.11 to 2.13 (pytorch/pytorch#196678, huggingface/trl#7181; seen with these models on an H200).
    Flash and memory-efficient attention take its place.
    """
    if not device.startswith("cuda"):
        return
    torch.backends.cuda.enable_cudnn_sdp(False)
    if dtype == "bfloat16":
        torch.set_float32_matmul_precision("high")
