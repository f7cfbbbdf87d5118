"""Kernels of a training: TF32 beside bfloat16 on a GPU, full precision elsewhere, and no attention by cuDNN."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from paco_core.training.precision import choose_kernels


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before, attention = torch.get_float32_matmul_precision(), torch.backends.cuda.cudnn_sdp_enabled()
    yield
    torch.set_float32_matmul_precision(before)
    torch.backends.cuda.enable_cudnn_sdp(attention)


@pytest.mark.parametrize(
    ("device", "dtype", "precision", "attends_by_cudnn"),
    [
        ("cuda:3", "bfloat16", "high", False),
        ("cuda", "float32", "highest", False),  # under autocast, its attention is half precision, too
        ("cpu", "bfloat16", "highest", True),
    ],
)
def test_kernels_of_a_training(device: str, dtype: str, precision: str, attends_by_cudnn: bool) -> None:
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.enable_cudnn_sdp(True)
    choose_kernels(device, dtype)
    assert torch.get_float32_matmul_precision() == precision
    assert torch.backends.cuda.cudnn_sdp_enabled() is attends_by_cudnn
