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
    ("device", "dtype", "precision"),
    [
        ("cuda", "bfloat16", "high"),
        ("cuda:3", "bfloat16", "high"),
        ("cuda", "float32", "highest"),
        ("cpu", "bfloat16", "highest"),
    ],
)
def test_products_are_tf32_beside_bfloat16_on_a_gpu(device: str, dtype: str, precision: str) -> None:
    torch.set_float32_matmul_precision("highest")
    choose_kernels(device, dtype)
    assert torch.get_float32_matmul_precision() == precision


@pytest.mark.parametrize(("device", "left"), [("cuda", False), ("cuda:1", False), ("cpu", True)])
def test_no_training_on_a_gpu_attends_by_cudnn(device: str, left: bool) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    choose_kernels(device, "float32")  # under autocast, attention of float32 weights is half precision, too
    assert torch.backends.cuda.cudnn_sdp_enabled() is left
