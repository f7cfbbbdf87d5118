"""Number formats: what keeps float32, what is painted in bfloat16, and where."""

from __future__ import annotations

import pytest
import torch

from paco_core.models.precision import computes_bfloat16, inference_autocast, weights_format


def product() -> torch.dtype:
    return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


def test_weights_of_mixed_are_float32() -> None:
    assert [weights_format(name) for name in ("mixed", "float32", "bfloat16", "float16")] == [
        torch.float32, torch.float32, torch.bfloat16, torch.float16,
    ]  # fmt: skip


@pytest.mark.parametrize("native", [True, False])
def test_mixed_alone_paints_in_bfloat16_where_it_is_not_emulated(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    computes_bfloat16.cache_clear()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_f": True, "avx512_bf16": native})
    assert computes_bfloat16("cpu") is native and not computes_bfloat16("mps")
    for dtype, computed in (("mixed", torch.bfloat16 if native else torch.float32), ("float32", torch.float32)):
        with inference_autocast("cpu", dtype):
            assert product() == computed
        assert product() == torch.float32
    computes_bfloat16.cache_clear()
