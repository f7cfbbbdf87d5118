"""Full precision of float32 products, but beside half precision on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from paco_core.training.precision import allow_tf32


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


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
    allow_tf32(device, dtype)
    assert torch.get_float32_matmul_precision() == precision
