"""Number formats: what keeps float32, what is painted in bfloat16, and where."""

from __future__ import annotations

import pytest
import torch

from paco_core.models import precision
from paco_core.models.precision import computes_bfloat16, painting, weights_format


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "computes_bfloat16", lambda _device: True)


def product() -> torch.dtype:
    return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


def test_weights_of_mixed_are_float32() -> None:
    assert [weights_format(name) for name in ("mixed", "float32", "bfloat16", "float16")] == [
        torch.float32, torch.float32, torch.bfloat16, torch.float16,
    ]  # fmt: skip


@pytest.mark.parametrize(("dtype", "found"), [("mixed", torch.bfloat16), ("float32", torch.float32)])
def test_mixed_alone_paints_in_bfloat16(native: None, dtype: str, found: torch.dtype) -> None:
    with painting("cpu", dtype):
        assert product() == found
    assert product() == torch.float32


def test_where_bfloat16_is_emulated_mixed_is_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    computes_bfloat16.cache_clear()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_f": True, "avx512_bf16": False})
    assert not computes_bfloat16("cpu")
    with painting("cpu", "mixed"):
        assert product() == torch.float32
    computes_bfloat16.cache_clear()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    assert computes_bfloat16("cpu") and not computes_bfloat16("mps")
    computes_bfloat16.cache_clear()
